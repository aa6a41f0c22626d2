// What pages do beyond htmx: relative times, keys, copying, a pause switch.
// Everything works without it, only less comfortably.
"use strict";

(() => {
  document.documentElement.dataset.script = "on"; // shows the hints at keys
  const $ = (id) => document.getElementById(id);

  // Relative times. The server says them the same way (format.go).
  function ago(then) {
    const s = Math.floor((Date.now() - then) / 1000);
    if (s < 5) return "just now";
    if (s < 60) return s + " s ago";
    if (s < 3600) return Math.floor(s / 60) + " min ago";
    if (s < 48 * 3600) return Math.floor(s / 3600) + " h ago";
    return Math.floor(s / 86400) + " days ago";
  }
  setInterval(() => {
    for (const t of document.querySelectorAll("time[data-ago]")) {
      const text = ago(Date.parse(t.dateTime));
      if (t.textContent !== text) t.textContent = text;
    }
  }, 1000);

  // The pause switch stops polling and live updates; a hidden page polls
  // nothing either.
  let paused = false;
  const pause = $("pause");
  if (pause && document.querySelector("[data-poll], [hx-sse\\:connect]")) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      $("pause-text").textContent = paused ? "Paused" : "Live";
      say(paused ? "Updates are paused" : "Updates go on");
      if (!paused && document.querySelector("[hx-sse\\:connect]")) location.reload(); // what was missed
    });
  }
  document.addEventListener("htmx:before:request", (e) => {
    if ((paused || document.hidden) && e.target.hasAttribute && e.target.hasAttribute("data-poll")) e.preventDefault();
  });
  document.addEventListener("htmx:sse:before:message", (e) => {
    if (paused && !e.detail.message.event) e.preventDefault();
  });

  function say(text) {
    const status = $("say");
    if (status) status.textContent = text;
  }

  // Copying. The buttons are of no use without this script, so they are hidden
  // until now.
  function showButtons() {
    for (const b of document.querySelectorAll("button.copy[hidden]")) b.hidden = false;
  }
  showButtons();
  async function copy(text) {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return;
    }
    const area = document.createElement("textarea"); // no clipboard without TLS
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  document.addEventListener("click", async (e) => {
    const button = e.target.closest && e.target.closest("button[data-copy]");
    if (!button) return;
    const label = button.textContent;
    try {
      await copy($(button.dataset.copy).textContent);
      button.textContent = "Copied";
      say("Copied");
    } catch {
      button.textContent = "Select and copy by hand";
    }
    setTimeout(() => { button.textContent = label; }, 1600);
  });

  // A menu closes when the focus or a click goes elsewhere.
  document.addEventListener("click", (e) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(e.target)) menu.open = false;
    }
  });

  // Keys: j and k move between rows, / searches, Escape closes.
  function move(by) {
    const rows = [...document.querySelectorAll("[data-row]")].filter((r) => r.offsetParent !== null);
    if (rows.length === 0) return;
    const at = rows.indexOf(document.activeElement);
    const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1);
    rows[next].focus();
    rows[next].scrollIntoView({ block: "nearest" });
  }
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "Escape") {
      for (const menu of document.querySelectorAll("details.menu[open]")) {
        menu.open = false;
        menu.querySelector("summary").focus();
      }
    }
    if (e.target.closest && e.target.closest("input, select, textarea")) {
      if (e.key === "Escape") e.target.blur();
      return;
    }
    if (e.key === "j") move(1);
    if (e.key === "k") move(-1);
    if (e.key === "/" && $("q")) {
      e.preventDefault();
      $("q").focus();
    }
  });

  // A link to a step opens it.
  const step = location.hash.startsWith("#step-") && $(location.hash.slice(1));
  if (step) step.open = true;
})();
