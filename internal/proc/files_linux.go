package proc

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// SocketPair returns the ends of a unix socket of a kind such as SOCK_SEQPACKET. Ours does not
// block, so that waiting for it holds no thread. Theirs is for another process and blocks, unless
// kind says SOCK_NONBLOCK.
func SocketPair(kind int) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
		return nil, nil, fmt.Errorf("make a socket: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}

// SendFiles sends a message with descriptors over a non-blocking unix socket.
func SendFiles(conn *os.File, message string, files ...*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), []byte(message), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		return sendErr != unix.EAGAIN
	})
	return errors.Join(err, sendErr)
}

// ReceiveFiles receives a one-byte message with exactly n descriptors from a non-blocking unix
// socket. It returns io.EOF when the peer has closed the socket.
func ReceiveFiles(conn *os.File, n int) ([]*os.File, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var message [1]byte
	control := make([]byte, unix.CmsgSpace(n*4))
	var got, controlLen int
	var recvErr error
	err = raw.Read(func(fd uintptr) bool {
		got, controlLen, _, _, recvErr = unix.Recvmsg(int(fd), message[:], control, unix.MSG_CMSG_CLOEXEC)
		return recvErr != unix.EAGAIN
	})
	if err = errors.Join(err, recvErr); err != nil {
		return nil, err
	}
	if got == 0 {
		return nil, io.EOF
	}
	var files []*os.File
	messages, err := unix.ParseSocketControlMessage(control[:controlLen])
	if err == nil && len(messages) == 1 {
		var fds []int
		fds, err = unix.ParseUnixRights(&messages[0])
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	if err == nil && len(files) != n {
		err = fmt.Errorf("received %d descriptors, want %d", len(files), n)
	}
	if err != nil {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, err
	}
	return files, nil
}
