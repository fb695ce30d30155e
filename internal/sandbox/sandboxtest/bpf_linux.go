package sandboxtest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// RunBPF runs a classic BPF program on data as the kernel would, and returns its result. It knows
// the instructions that this project's filters use. A load past the end of data ends the program
// with 0.
func RunBPF(prog []unix.SockFilter, order binary.ByteOrder, data []byte) (uint32, error) {
	var a, x uint32
	var outside bool
	at := func(off uint32, n int) []byte {
		if uint64(off)+uint64(n) > uint64(len(data)) {
			outside = true
			return make([]byte, n)
		}
		return data[off:]
	}
	for pc := 0; pc < len(prog); pc++ {
		i := prog[pc]
		jump := func(yes bool) {
			if yes {
				pc += int(i.Jt)
			} else {
				pc += int(i.Jf)
			}
		}
		switch i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = order.Uint32(at(i.K, 4))
		case unix.BPF_LD | unix.BPF_H | unix.BPF_ABS:
			a = uint32(order.Uint16(at(i.K, 2)))
		case unix.BPF_LD | unix.BPF_B | unix.BPF_ABS:
			a = uint32(at(i.K, 1)[0])
		case unix.BPF_LD | unix.BPF_H | unix.BPF_IND:
			a = uint32(order.Uint16(at(x+i.K, 2)))
		case unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH:
			x = uint32(at(i.K, 1)[0]&0xf) * 4
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= i.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(a == i.K)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			jump(a > i.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(a >= i.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(a&i.K != 0)
		case unix.BPF_RET | unix.BPF_K:
			return i.K, nil
		default:
			return 0, fmt.Errorf("instruction %d has code %#x", pc, i.Code)
		}
		if outside {
			return 0, nil
		}
	}
	return 0, errors.New("the program runs past its end")
}
