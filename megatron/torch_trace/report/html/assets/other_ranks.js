// SPDX-License-Identifier: Apache-2.0
// Of very many ranks the timeline shows some: others are offered after a click, or named by hand. The server makes
// a timeline with them, which `begin` opens.
"use strict";
const otherRanks = ({ address, offsets, say, begin, forget }) => {
  const offer = document.querySelector("#load-rank"), form = document.querySelector("#choose-ranks");
  const field = form?.querySelector("input"), limit = form?.querySelector("output");
  let known = null, opened = null, follows = false;

  const has = (rank) => known.ranks.split(",").some((part) => {
    const [first, last = first] = part.split("-").map(Number);
    return first <= Number(rank) && Number(rank) <= last;
  });

  // What the server tells of a timeline that is opened now.
  const tell = (answer) => {
    opened = answer.timeline;
    if (!answer.ranks || !form) return;
    known = answer;
    form.hidden = false;
    offer.hidden = true;
    field.value = answer.shown;
    limit.textContent = `at most ${answer.most} of ${answer.ranks}`;
  };

  const follow = async () => {
    let answer;
    try {
      answer = await (await fetch(offsets, { cache: "no-store" })).json();
    } catch {
      say("The server does not answer; is torch-trace view still running?");
      setTimeout(follow, 3000);
      return;
    }
    if (answer.loading) say(answer.loading.message);
    if (answer.loading?.state === "converting") {
      setTimeout(follow, 500);
      return;
    }
    follows = false;
    if (!answer.loading && answer.timeline !== opened) begin(answer);
  };

  const load = async (query) => {
    offer.hidden = true;
    say("Asking for these ranks ...");
    try {
      const reply = await fetch(`${address}?${new URLSearchParams(query)}`, { method: "POST" });
      if (!reply.ok) { say((await reply.text()).trim()); return; }
    } catch {
      say("The server does not answer; is torch-trace view still running?");
      return;
    }
    if (!follows) { follows = true; follow(); }
  };

  // A click on a rank that the timeline does not show.
  const suggest = (rank) => {
    if (!known || !has(rank)) {
      say(`Rank ${rank} is not in the timeline, since its trace is not there.`);
      return;
    }
    say(`Rank ${rank} is not among the ranks of the timeline.`);
    offer.textContent = `Load rank ${rank}`;
    offer.hidden = false;
    offer.onclick = () => load({ add: rank });
  };
  const withdraw = () => { if (offer) offer.hidden = true; };

  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    forget();
    load({ show: field.value });
  });
  return { tell, suggest, withdraw };
};
