"use strict";
// Follows events live: new rows come on top, and the oldest go.
(() => {
  const MOST_ROWS = 300;
  const button = document.querySelector("[data-follow]");
  const body = document.querySelector("[data-events]");
  const told = document.querySelector("[data-followed]");
  if (button === null || body === null) return;
  let source = null;
  let count = 0;
  const kept = document.querySelector("[name=follow]");

  // Whether events are followed is in the address, and goes along with other filters.
  function keep(following) {
    const url = new URL(location.href);
    if (following) url.searchParams.set("follow", "1"); else url.searchParams.delete("follow");
    history.replaceState(history.state, "", url);
    kept.disabled = !following;
  }

  function stop() {
    source?.close();
    source = null;
    button.setAttribute("aria-pressed", "false");
    button.textContent = "Follow";
  }

  button.addEventListener("click", () => {
    keep(source === null);
    if (source !== null) { stop(); return; }
    source = new EventSource(button.dataset.follow);
    button.setAttribute("aria-pressed", "true");
    button.textContent = "Following";
    told.hidden = false;
    told.textContent = "Waiting for events…";
    source.onmessage = (event) => {
      const { rows, count: more } = JSON.parse(event.data);
      const holder = document.createElement("template");
      holder.innerHTML = rows;
      body.prepend(holder.content);
      while (body.rows.length > MOST_ROWS) body.rows[body.rows.length - 1].remove();
      window.headgateTimes(body);
      document.getElementById("events").hidden = false;
      document.querySelector("[data-empty]")?.remove();
      count += more;
      told.textContent = `${count.toLocaleString()} new since you follow`;
    };
    source.onerror = () => { told.textContent = "The service does not answer: trying again…"; };
  });
  addEventListener("pagehide", stop);
  if (new URL(location.href).searchParams.has("follow")) button.click();
})();
