"use strict";
// The editor of a rule: shows the fields that the chosen algorithm and action have a use for, and leaves the others out.
(() => {
  const form = document.getElementById("editor");
  if (form === null) return;
  const valueOf = (name) => {
    const one = form.elements[name];
    if (one === undefined || one.closest("[hidden]") !== null) return "";
    return one.type === "checkbox" ? (one.checked ? "on" : "") : one.value;
  };
  function show() {
    for (const field of form.querySelectorAll("[data-when]")) {
      field.hidden = !field.dataset.values.split(" ").includes(valueOf(field.dataset.when));
      for (const one of field.querySelectorAll("input, select, textarea")) one.disabled = field.hidden;
    }
  }
  form.addEventListener("change", show);
  show();
  const isTyped = (one) => (one.type === "checkbox" ? one.checked !== one.defaultChecked : one.value !== (one.defaultValue ?? one.value));
  const previewTyped = () => {
    if (Array.from(form.elements).some(isTyped)) form.dispatchEvent(new Event("input"));
  };
  document.body.addEventListener("htmx:load", previewTyped, { once: true }); // typed before htmx was there to see it
})();
