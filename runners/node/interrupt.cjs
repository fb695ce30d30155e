// A thread of the driver that waits for SIGINT, because JavaScript that does not return blocks the main
// thread.
//
// vm's breakOnSigint ends the wait. Then this thread asks the main thread to interrupt its cell. If that
// does not answer, the inspector interrupts it (see unwind in the driver) and ends its JavaScript.
//
// Node aborts if its stack of asynchronous contexts is not unwound in order. So the main thread empties
// the stack first, and stays interrupted until the request to end it is queued. If it may be changing
// the stack, this thread tries again.
'use strict';

const inspector = require('node:inspector');
const vm = require('node:vm');
const { parentPort, workerData } = require('node:worker_threads');

const PATIENCE = 100; // ms
const END = 2; // an answer of unwind

const answers = workerData; // [0]: questions answered, [1]: attempts left to unwind, [2]: unwind's answer
const never = new Int32Array(new SharedArrayBuffer(4));
let question = 0;
let attempt = 0;

function interrupted() {
  const answered = Atomics.load(answers, 0);
  question++;
  parentPort.postMessage(question);
  if (Atomics.wait(answers, 0, answered, PATIENCE) !== 'timed-out') return;
  while (!end() && Atomics.wait(answers, 0, answered, 1) === 'timed-out');
}

function end() {
  attempt++;
  Atomics.store(answers, 2, 0);
  const session = new inspector.Session();
  session.connectToMainThread();
  session.post('Runtime.evaluate', { expression: `__unwind(${question}, ${attempt})` });
  Atomics.wait(answers, 2, 0); // while code other than JavaScript runs
  const now = Atomics.load(answers, 2) === END;
  if (now) session.post('Runtime.terminateExecution');
  Atomics.store(answers, 1, attempt);
  session.disconnect();
  return now;
}

globalThis.wait = () => Atomics.wait(never, 0, 0);
globalThis.watch = () => {
  if (question === 0) parentPort.postMessage(0); // ready for signals
  for (;;) {
    try {
      vm.runInThisContext('wait()', { breakOnSigint: true });
    } catch {
      interrupted();
    }
  }
};
// When the last breakOnSigint ends, SIGINT kills the process again: so an outer one stays.
for (;;) {
  try {
    vm.runInThisContext('watch()', { breakOnSigint: true });
  } catch {
    interrupted(); // by a signal during the handling of the last one
  }
}
