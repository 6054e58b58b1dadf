"use strict";
// Runs before the first paint: the theme that the reader chose, else the system's.
(() => {
  const chosen = localStorage.getItem("headgate-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
