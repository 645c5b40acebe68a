"""The frame of a report: a page that needs nothing beside itself, with its style and the little that it does."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.tuning.report.svg import safe

STYLE = """
:root { --ground: #fff; --text: #1d2126; --pale: #667; --line: #d9dce1; --card: #f5f6f8; --mark: #fff2c9; --hatch: #999;
  --complete: #009E73; --pruned: #E69F00; --failed: #D55E00; --running: #56B4E9; --twice: #CC79A7; --best: #0072B2;
  color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --text: #e6e8eb; --pale: #9aa3ad; --line: #363c44; --card: #1e2329;
  --mark: #4a3f17; --hatch: #777; --best: #56B4E9; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 1.7rem; margin: 0 0 2px; }
h2 { font-size: 1.2rem; margin: 44px 0 6px; padding-top: 10px; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 20px 0 4px; }
p { margin: 6px 0; max-width: 100ch; }
.pale { color: var(--pale); }
svg text.pale { fill: var(--pale); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px;
  margin: 18px 0; padding: 0; list-style: none; }
.tiles li { background: var(--card); border-radius: 8px; padding: 10px 14px; }
.tiles b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tiles small { color: var(--pale); display: block; }
.command { position: relative; }
pre { background: var(--card); border-radius: 8px; padding: 12px 84px 12px 14px; margin: 8px 0; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13.5px/1.5 ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; }
button { font: inherit; color: inherit; cursor: pointer; }
.copy { position: absolute; top: 7px; right: 8px; border: 1px solid var(--line); border-radius: 6px; background: var(--ground);
  padding: 1px 12px; font-size: 13px; }
.wide { overflow-x: auto; }
.slices { display: grid; grid-template-columns: repeat(auto-fill, minmax(290px, 1fr)); gap: 8px; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11.5px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--text); }
svg .name { font-weight: 600; }
svg .end { text-anchor: end; }
svg .middle { text-anchor: middle; }
svg .small { font-size: 9px; }
svg .inner { font-size: 10.5px; fill: #000; pointer-events: none; }
svg .halo { paint-order: stroke; stroke: var(--ground); stroke-width: 3.5px; stroke-linejoin: round; }
.axis { stroke: var(--pale); stroke-width: 1; }
.grid { stroke: var(--line); stroke-width: 1; }
.mark { stroke: var(--ground); stroke-width: 1; }
.mark.complete { fill: var(--complete); } .mark.pruned { fill: var(--pruned); }
.mark.failed { fill: none; stroke: var(--failed); stroke-width: 2; }
.mark.off { fill: var(--ground); stroke-width: 1.8; }
.mark.complete.off { stroke: var(--complete); } .mark.pruned.off { stroke: var(--pruned); }
.mark.behind { opacity: .6; } .mark.front { fill: var(--best); }
.spread { stroke: var(--complete); stroke-width: 1.5; opacity: .4; }
.best { fill: none; stroke: var(--best); stroke-width: 1.8; }
.ring { fill: none; stroke: var(--best); stroke-width: 2; pointer-events: none; }
.way { fill: none; stroke-width: 1.7; opacity: .75; } .way.first { stroke-width: 3.2; opacity: 1; }
.way.grey { stroke: var(--pale); stroke-width: 1; opacity: .35; stroke-dasharray: 4 3; }
.bar { fill: var(--best); }
.part { opacity: .85; } .mean { stroke: var(--text); stroke-width: 2; }
.there { fill: var(--line); } .cut { fill: var(--card); stroke: var(--line); stroke-dasharray: 3 3; }
.span.complete { fill: var(--complete); } .span.pruned { fill: var(--pruned); } .span.failed { fill: var(--failed); }
.span.running { fill: var(--running); } .span.done-twice { fill: var(--twice); } .span.given-back, .span.lost { fill: url(#hatch); }
.hatch-ground { fill: var(--card); } .hatch-line { stroke: var(--hatch); stroke-width: 3; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; padding: 0; margin: 4px 0 6px; list-style: none; font-size: 13px; }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
.key.complete { background: var(--complete); border-radius: 50%; }
.key.pruned { background: var(--pruned); clip-path: polygon(50% 0, 100% 100%, 0 100%); }
.key.failed { background: var(--failed); clip-path: polygon(
  20% 0, 50% 30%, 80% 0, 100% 20%, 70% 50%, 100% 80%, 80% 100%, 50% 70%, 20% 100%, 0 80%, 30% 50%, 0 20%); }
.key.running { background: var(--running); } .key.done-twice { background: var(--twice); }
.key.given-back, .key.lost { background: repeating-linear-gradient(135deg, var(--card) 0 3px, var(--hatch) 3px 6px); }
.key.line { height: 3px; vertical-align: 4px; background: var(--best); width: 18px; }
.spans .key { clip-path: none; border-radius: 3px; }
.ramp { display: inline-block; width: 90px; height: 10px; border-radius: 3px; margin: 0 6px; vertical-align: 0;
  background: linear-gradient(90deg, #D55E00, #E69F00, #56B4E9, #0072B2); }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 3px 12px 3px 6px; border-bottom: 1px solid var(--line); vertical-align: top;
  white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
td.n, th.n { text-align: right; }
td.reason { white-space: pre-wrap; overflow-wrap: anywhere; max-width: 50em; }
td.reason:not(:empty) { min-width: 50em; }
th button { border: 0; background: none; padding: 0; font-weight: 600; text-align: inherit; }
th[aria-sort=ascending] button::after { content: " \\25B2"; } th[aria-sort=descending] button::after { content: " \\25BC"; }
tr:target { background: var(--mark); }
tfoot td { font-weight: 600; }
details summary { cursor: pointer; }
footer { margin-top: 44px; color: var(--pale); font-size: 13px; }
@media print { .copy { display: none; } h2 { break-after: avoid; } svg { break-inside: avoid; } }
"""
"""The colours of marks are those of Okabe and Ito, which the colour-blind tell apart."""

SCRIPT = """
"use strict";
(() => {
  const lit = document.head.appendChild(document.createElement("style"));
  const trialAt = event => { const found = event.target.closest("[data-t]"); return found ? found.dataset.t : ""; };
  let shown = "";
  document.addEventListener("mouseover", event => {
    const trial = trialAt(event);
    if (trial === shown) return;
    shown = trial;
    lit.textContent = trial === "" ? "" : `svg [data-t]:not([data-t="${trial}"]) { opacity: .12; }
      svg [data-t="${trial}"] { opacity: 1; } .way[data-t="${trial}"] { stroke-width: 3.5; }
      tr[data-t="${trial}"] { background: var(--mark); }`;
  });
  document.addEventListener("click", event => {
    const trial = event.target.closest("svg") ? trialAt(event) : "";
    if (trial !== "") location.hash = `t${trial}`;
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
"""
"""The page reads the same without it: it lights up one trial in all pictures, copies the command and sorts the table."""

RULES = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""By which the browser refuses to fetch anything."""


def framed(title: str, body: str) -> str:
    """Pure: the whole page around what it says."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{RULES}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{safe(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def table(heads: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]], foot: Sequence[str] = ()) -> str:
    """Pure: texts in rows; the heads say which columns are numbers."""
    classes = [' class="n"' if is_number else "" for _, is_number in heads]

    def row(name: str, texts: Sequence[str]) -> str:
        cells = "".join(f"<{name}{cls}>{safe(text)}</{name}>" for cls, text in zip(classes, texts, strict=True))
        return f"<tr>{cells}</tr>"

    head, body = row("th", [text for text, _ in heads]), "".join(row("td", one) for one in rows)
    end = f"<tfoot>{row('td', foot)}</tfoot>" if foot else ""
    return f"<table><thead>{head}</thead><tbody>{body}</tbody>{end}</table>"


def legend(*keys: tuple[str, str], cls: str = "legend") -> str:
    """Pure: a sign and what it means, for each; the sign is a class of the style."""
    items = "".join(f'<li><span class="key {name.replace(" ", "-")}"></span>{safe(text)}</li>' for name, text in keys)
    return f'<ul class="{cls}">{items}</ul>'


def wide(picture: str) -> str:
    """Pure: what may be wider than a small screen, which then scrolls it."""
    return f'<div class="wide">{picture}</div>'
