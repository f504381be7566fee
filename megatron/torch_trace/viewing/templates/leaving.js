// SPDX-License-Identifier: Apache-2.0
// Put before Perfetto's own scripts. Leaving a page ends what it fetches. Perfetto tells that a trace
// could not be fetched in a dialog, and no other page opens until somebody has closed the dialog.
"use strict";
(() => {
  // A click that saves a file is told like one that leaves. The page stays, so what fails later is news.
  const LEAVING_MS = 10000;
  const alert = window.alert;
  let until = -Infinity;
  window.addEventListener("beforeunload", () => { until = performance.now() + LEAVING_MS; });
  window.alert = (message) => {
    if (performance.now() < until) console.warn(message);
    else alert.call(window, message);
  };
})();
