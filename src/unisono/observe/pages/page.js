// The page reads the same without this: it lights up one thing (data-t) in all pictures, copies commands and sorts tables.
"use strict";
(() => {
  const lit = document.head.appendChild(document.createElement("style"));
  const thingAt = event => { const found = event.target.closest("[data-t]"); return found ? found.dataset.t : ""; };
  let shown = "";
  document.addEventListener("mouseover", event => {
    const thing = thingAt(event);
    if (thing === shown) return;
    shown = thing;
    lit.textContent = thing === "" ? "" : `svg [data-t]:not([data-t="${thing}"]) { opacity: .12; }
      svg [data-t="${thing}"] { opacity: 1; } .way[data-t="${thing}"] { stroke-width: 3.5; }
      tr[data-t="${thing}"] { background: var(--mark); }`;
  });
  document.addEventListener("click", event => {
    const thing = event.target.closest("svg") ? thingAt(event) : "";
    if (thing !== "") location.hash = `t${thing}`;
  });
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("pre");
      try {
        await navigator.clipboard.writeText(text.textContent);
      } catch {
        getSelection().selectAllChildren(text);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        heads.forEach(one => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        const key = row => row.cells[place].dataset.v ?? row.cells[place].textContent;
        const order = (one, other) => {
          if (one === "" || other === "") return (one === "") - (other === "");
          const a = Number(one), b = Number(other);
          return sign * (Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other) : a - b);
        };
        table.tBodies[0].append(...[...table.tBodies[0].rows].sort((one, other) => order(key(one), key(other))));
      });
    });
  }
})();
