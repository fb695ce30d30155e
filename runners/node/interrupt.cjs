// A thread that notices SIGINT, for the driver: JavaScript that does not return keeps the main thread from noticing anything.
//
// vm's breakOnSigint ends what this thread waits in. Then the main thread is asked to interrupt its cell. If it does not answer, it
// is made to through the inspector (see unwind in the driver), and its JavaScript is ended.
//
// Node keeps a stack of asynchronous contexts, expects JavaScript to unwind it and aborts when it finds it in disorder. So the main
// thread empties it before it is ended, and stays in the same interruption until the request to end it is queued. If it
// may be in the middle of changing that stack, this thread tries again.
'use strict';

const inspector = require('node:inspector');
const vm = require('node:vm');
const { parentPort, workerData } = require('node:worker_threads');

const PATIENCE = 100; // ms
const END = 2; // unwind's answer

const answers = workerData; // [0] counts the questions answered; [1] the attempts that unwind may leave; [2] is what unwind says
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
  Atomics.wait(answers, 2, 0); // as long as something that is not JavaScript runs
  const now = Atomics.load(answers, 2) === END;
  if (now) session.post('Runtime.terminateExecution');
  Atomics.store(answers, 1, attempt);
  session.disconnect();
  return now;
}

globalThis.wait = () => Atomics.wait(never, 0, 0);
globalThis.watch = () => {
  if (question === 0) parentPort.postMessage(0); // signals are noticed from now on
  for (;;) {
    try {
      vm.runInThisContext('wait()', { breakOnSigint: true });
    } catch {
      interrupted();
    }
  }
};
// The last breakOnSigint to end gives SIGINT back its deadly default: so there is always one more around it.
for (;;) {
  try {
    vm.runInThisContext('watch()', { breakOnSigint: true });
  } catch {
    interrupted(); // by a signal that came while the last one was being handled
  }
}
