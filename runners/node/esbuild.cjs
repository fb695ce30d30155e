// Compiles TypeScript and JSX with esbuild, in another process: the sandbox bounds its memory, and a
// crash is reported.
//
// Beside a prestarted process, an esbuild already waits on descriptor 3. It compiles the program and
// its static imports, and ends before they run. If it fails, or finds an error, a new process compiles
// the file: messages are always those of the command line.
'use strict';

// Cells may redeclare globals such as Array and process: keep the original ones.
const { Array, Buffer, Error, Object, String, process } = globalThis;

const fs = require('node:fs');
const path = require('node:path');

const binary = path.join(__dirname, 'node_modules', '@esbuild', `${process.platform}-${process.arch}`, 'bin', 'esbuild');
const maxCode = 64 << 20;

// compile returns {code}, {error}, or {fatal} if esbuild could not finish. It calls meanwhile, if any,
// while the waiting esbuild compiles.
function compile(args, source, meanwhile) {
  const code = waiting.compile(args, source, meanwhile);
  return code === undefined ? compileInNewProcess(args, source) : { code };
}

function compileInNewProcess(args, source) {
  const { spawnSync } = require('node:child_process');
  const r = spawnSync(binary, args, { input: source, maxBuffer: maxCode, env: {} });
  const message = String(r.stderr ?? '').trim();
  if (r.error?.code === 'ENOBUFS') return { fatal: 'the compiled code is larger than 64 MB' };
  if (r.error?.code === 'EAGAIN' || /failed to create new OS thread .*errno=11/.test(message)) {
    return { fatal: 'the compiler could not start: the process limit of the sandbox is reached. Start fewer processes, or wait until other runs of this session have ended.' };
  }
  if (r.error) return { fatal: `esbuild does not start: ${r.error.message}` };
  if (r.signal || r.status === 2) { // killed, or a crash of a Go program
    return { fatal: 'the compiler was killed: this source needs more memory to compile than the sandbox allows. Is something nested very deeply?' };
  }
  return r.status === 0 ? { code: r.stdout.toString() } : { error: message || `esbuild ended with code ${r.status}` };
}

// ---- The waiting esbuild. The protocol is that of its own library, lib/main.js. ----

const waiting = {
  fd: undefined, // a blocking socket

  // connect starts to use the esbuild at the other end of a socket, if there is one.
  connect(fd) {
    try {
      if (!fs.fstatSync(fd).isSocket()) return;
      this.fd = fd;
      this.receive(); // its version
    } catch {
      this.close();
    }
  },

  isConnected() { return this.fd !== undefined; },

  close() {
    const fd = this.fd;
    this.fd = undefined;
    if (fd !== undefined) fs.closeSync(fd); // esbuild ends
  },

  // compile returns undefined if it cannot.
  compile(args, source, meanwhile) {
    if (!this.isConnected()) return undefined;
    try {
      this.send(encode({ command: 'transform', flags: args, inputFS: false, input: Buffer.from(source) }));
      meanwhile?.();
      const { code, errors } = decode(this.receive());
      return errors?.length === 0 ? code : undefined;
    } catch {
      this.close();
      return undefined;
    }
  },

  // send sends a packet: its size, the id of the request, which is always 0, and the request.
  send(value) {
    const head = Buffer.alloc(8);
    head.writeUInt32LE(4 + value.length);
    const packet = Buffer.concat([head, value]);
    for (let sent = 0; sent < packet.length;) sent += fs.writeSync(this.fd, packet, sent);
  },

  receive() {
    const size = this.read(4).readUInt32LE();
    if (size > maxCode) throw new Error('a packet is too large');
    return this.read(size);
  },

  read(size) {
    const buffer = Buffer.allocUnsafe(size);
    for (let got = 0; got < size;) {
      const n = fs.readSync(this.fd, buffer, got, size - got);
      if (n === 0) throw new Error('esbuild has ended');
      got += n;
    }
    return buffer;
  },
};

function encode(value) {
  if (typeof value === 'boolean') return Buffer.from([1, +value]);
  if (typeof value === 'string') return Buffer.concat([Buffer.from([3]), sized(Buffer.from(value))]);
  if (Buffer.isBuffer(value)) return Buffer.concat([Buffer.from([4]), sized(value)]);
  if (Array.isArray(value)) return Buffer.concat([Buffer.from([5]), uint32(value.length), ...value.map(encode)]);
  const entries = Object.entries(value);
  return Buffer.concat([Buffer.from([6]), uint32(entries.length), ...entries.flatMap(([key, each]) => [sized(Buffer.from(key)), encode(each)])]);
}

function uint32(n) {
  const buffer = Buffer.alloc(4);
  buffer.writeUInt32LE(n);
  return buffer;
}

const sized = (buffer) => Buffer.concat([uint32(buffer.length), buffer]);

// decode returns the value of a response.
function decode(packet) {
  let at = 4; // after the id
  const take = (size) => packet.subarray(at, at += size);
  const number = () => take(4).readUInt32LE();
  const bytes = () => take(number());
  const value = () => {
    switch (take(1)[0]) {
      case 0: return null;
      case 1: return take(1)[0] !== 0;
      case 2: return number();
      case 3: return bytes().toString();
      case 4: return bytes();
      case 5: return Array.from({ length: number() }, value);
      case 6: return Object.fromEntries(Array.from({ length: number() }, () => [bytes().toString(), value()]));
      default: throw new Error('a packet has an unknown type');
    }
  };
  return value();
}

module.exports = { binary, compile, waiting };
