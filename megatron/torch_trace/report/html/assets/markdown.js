// SPDX-License-Identifier: Apache-2.0
// The answer, the first findings and tables as Markdown, for an issue or a chat.
"use strict";
(() => {
  const { all, one, cellText, copyText } = globalThis.report;
  const MOST_CARDS = 3;
  const plain = (text) => text.replace(/\s+/g, " ").trim();
  // Names from traces are text: no link, no markup, no end of a cell.
  const escaped = (text) => plain(text).replace(/[\\`*_[\]<>|#]/g, "\\$&");

  const tableText = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    const rows = [...table.tBodies[0].rows].filter((row) => !row.classList.contains("gone"));
    const line = (cells) => `| ${cells.join(" | ")} |`;
    return [
      line(heads.map((head) => escaped(head.textContent))),
      line(heads.map((head) => (head.classList.contains("n") ? "---:" : "---"))),
      ...rows.map((row) => line([...row.cells].map((cell) => escaped(cellText(cell))))),
    ].join("\n");
  };
  for (const button of all(".copy-markdown")) {
    const block = button.closest(".block");
    button.hidden = false;
    button.addEventListener("click", () => copyText(`**${escaped(one("h3", block).textContent)}**\n\n${tableText(one("table", block))}\n`, button));
  }

  const answer = one("#copy-answer");
  if (!answer) return;
  const without = (element, selector) => {
    const copy = element.cloneNode(true);
    all(selector, copy).forEach((part) => part.remove());
    return plain(copy.textContent);
  };
  answer.hidden = false;
  answer.addEventListener("click", () => {
    const cards = all(".findings:not(.below) > .finding").slice(0, MOST_CARDS).map((card) => {
      const of = (name) => one(`:scope > .${name}`, card);
      const told = [`- **${escaped(without(of("title"), ".anchor"))}**`, ...["gain", "advice"].filter(of).map((name) => escaped(of(name).textContent))];
      const below = all(":scope > .below > .finding > .title", card).map((title) => `  - ${escaped(without(title, ".anchor"))}`);
      return [told.join(" "), ...below].join("\n");
    });
    copyText([
      `# ${escaped(one("h1").textContent)}`,
      ...all(".head").map((line) => escaped(line.textContent)),
      ...all("#breakdown .answer p").map((line) => escaped(line.textContent)),
      cards.join("\n"),
    ].filter(Boolean).join("\n\n") + "\n", answer);
  });
})();
