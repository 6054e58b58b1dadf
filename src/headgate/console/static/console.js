"use strict";
// What every page needs: times in the reader's zone, dialogs, keys, the theme.
(() => {
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const clock = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const short = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
  const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });

  function ago(at) {
    const seconds = (at - Date.now()) / 1000;
    for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
      if (Math.abs(seconds) >= size) return relative.format(Math.round(seconds / size), unit);
    }
    return relative.format(Math.round(seconds), "second");
  }

  function showTimes(root) {
    for (const one of root.querySelectorAll("time[datetime]")) {
      const at = new Date(one.dateTime);
      const style = one.dataset.style;
      one.textContent = style === "ago" ? ago(at) : (style === "clock" ? clock : style === "short" ? short : full).format(at);
    }
  }
  window.headgateTimes = showTimes;

  // Opens this page for another range, in Unix seconds.
  window.headgateRange = (since, until) => {
    const url = new URL(location.href);
    for (const name of ["range", "after", "done"]) url.searchParams.delete(name);
    url.searchParams.set("since", since);
    url.searchParams.set("until", until);
    location.href = url;
  };
  const range = document.getElementById("range");
  const local = (seconds) => { const at = new Date(seconds * 1000); return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16); };
  range.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const { since, until } = event.target.elements;
    const [from, to] = [since, until].map((one) => new Date(one.value) / 1000);
    until.setCustomValidity(from < to ? "" : "This has to be later than the beginning.");
    if (until.reportValidity()) window.headgateRange(from, to);
  });
  range.addEventListener("input", () => range.querySelector("[name=until]").setCustomValidity(""));

  const dialog = document.getElementById("dialog");
  const keys = document.getElementById("keys");
  // Drop sparklines that come for a table which a search has replaced: they belong to other rows.
  document.body.addEventListener("htmx:beforeRequest", ({ detail: { elt } }) => {
    if (!elt.matches("[data-sparklines]")) return;
    elt.addEventListener("htmx:beforeOnLoad", (event) => { if (!elt.isConnected) event.preventDefault(); });
  });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    showTimes(event.detail.target);
    if (event.detail.target === dialog && !dialog.open) dialog.showModal();
  });
  document.body.addEventListener("htmx:sendError", () => {
    const target = document.querySelector("[data-done]") ?? document.createElement("p");
    target.className = "failed";
    target.setAttribute("role", "alert");
    target.textContent = "The service does not answer. It is tried again with the next click.";
    if (!target.isConnected) document.getElementById("main").prepend(target);
  });

  document.addEventListener("click", (event) => {
    const one = event.target.closest("[data-close], [data-back], [data-help], [data-theme-toggle], [data-copy], [data-range]");
    if (one === null) return;
    if ("close" in one.dataset) (one.closest("dialog") ?? dialog).close();
    if ("back" in one.dataset) history.back();
    if ("help" in one.dataset) keys.showModal();
    if ("range" in one.dataset) {
      const now = Math.floor(Date.now() / 60000) * 60;
      range.querySelector("[name=since]").value = local(one.dataset.since ?? now - 86400);
      range.querySelector("[name=until]").value = local(one.dataset.until ?? now);
      range.showModal();
    }
    if ("copy" in one.dataset) {
      navigator.clipboard.writeText(document.querySelector(one.dataset.copy).textContent).then(() => { one.textContent = "Copied"; });
    }
    if ("themeToggle" in one.dataset) {
      const dark = document.documentElement.dataset.theme === "dark" ||
        (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
      document.documentElement.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("headgate-theme", document.documentElement.dataset.theme);
      document.dispatchEvent(new Event("headgate:theme"));
    }
  });

  let prefix = false;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, dialog[open]");
    if (event.key === "Escape" && event.target.closest("input, textarea, select")) event.target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (prefix) {
      prefix = false;
      const page = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (page !== null) location.href = page.href;
      return;
    }
    if (event.key === "g") { prefix = true; setTimeout(() => { prefix = false; }, 1500); }
    if (event.key === "?") keys.showModal();
    if (event.key === "/") {
      const search = document.querySelector("[data-search]");
      if (search !== null) { event.preventDefault(); search.focus(); search.select(); }
    }
    if (event.key === "j" || event.key === "k") {
      const rows = [...document.querySelectorAll("[data-row]")];
      const here = rows.findIndex((row) => row.classList.contains("here"));
      const next = rows[Math.min(rows.length - 1, Math.max(0, here + (event.key === "j" ? 1 : -1)))];
      if (next === undefined) return;
      rows[here]?.classList.remove("here");
      next.classList.add("here");
      (next.querySelector("a, button") ?? next).focus({ preventScroll: true });
      next.scrollIntoView({ block: "nearest" });
    }
  });

  // A message of what was done is shown once, not again when the page is opened by its address.
  if (document.querySelector("[data-done]") !== null) {
    const url = new URL(location.href);
    url.searchParams.delete("done");
    history.replaceState(history.state, "", url);
  }
  showTimes(document);
  document.querySelector(".side nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  setInterval(() => showTimes(document), 30000);
})();
