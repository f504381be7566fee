// SPDX-License-Identifier: Apache-2.0
// Put before Perfetto's own scripts. For each trace Perfetto starts a trace_processor, and beside it
// the next one, for the next trace: 35 MB that a page with one trace never uses. Here that one starts
// when it is first spoken to.
"use strict";
(() => {
  const Real = window.Worker;
  let started = 0;
  class Late {
    #start;
    #real = null;
    #asked = [];
    constructor(...args) { this.#start = () => new Real(...args); }
    #worker() {
      if (!this.#real) {
        this.#real = this.#start();
        for (const ask of this.#asked) ask(this.#real);
      }
      return this.#real;
    }
    #later(ask) { if (this.#real) ask(this.#real); else this.#asked.push(ask); }
    postMessage(...args) { this.#worker().postMessage(...args); }
    addEventListener(...args) { this.#later((one) => one.addEventListener(...args)); }
    removeEventListener(...args) { this.#later((one) => one.removeEventListener(...args)); }
    set onmessage(listener) { this.#later((one) => { one.onmessage = listener; }); }
    set onerror(listener) { this.#later((one) => { one.onerror = listener; }); }
    terminate() { this.#real?.terminate(); }
  }
  window.Worker = function Worker(...args) {
    const isEngine = String(args[0]).includes("engine_bundle");
    if (isEngine) started += 1;
    return isEngine && started > 1 ? new Late(...args) : new Real(...args);
  };
})();
