"use strict";
// Keeps a page of the gateway up to date: asks for it again, and replaces the parts (data-part) that have changed.
// It asks for nothing while the page is hidden, or when nobody has touched it for a while.
(() => {
  const main = document.querySelector("main");
  const live = document.getElementById("live");
  const again = document.getElementById("again");
  const idle_ms = () => 1000 * Number(main.dataset.idleS);
  let tag = main.dataset.tag, timer = 0, touched = Date.now(), stopped = false, asking = false;
  let parts = partsOf(document);

  function partsOf(page) {
    return new Map([...page.querySelectorAll("[data-part]")].map((part) => [part.id, part.outerHTML]));
  }

  function say(text) {
    if (live.textContent !== text) live.textContent = text;
  }

  function isTypedIn(part) {
    const focused = document.activeElement;
    return part.contains(focused) && /^(INPUT|TEXTAREA|SELECT)$/.test(focused.tagName);
  }

  // What tells an element from others of its part, so that it can be found again in the new one.
  function nameOf(element) {
    return element.id || element.getAttribute("href") || element.getAttribute("aria-label") || element.textContent;
  }

  function replace(old, fresh) {
    if (old.getAttribute("role") === "status") {  // a screen reader reads what changes in it, and no new element
      if (old.textContent !== fresh.textContent) old.textContent = fresh.textContent;
      return;
    }
    const open = [...old.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = [...old.querySelectorAll(".box, pre")].map((box) => box.scrollLeft);
    const made = document.importNode(fresh, true);
    for (const summary of made.querySelectorAll("details > summary")) {
      if (open.includes(summary.textContent)) summary.parentElement.open = true;
    }
    old.replaceWith(made);
    [...made.querySelectorAll(".box, pre")].forEach((box, n) => { box.scrollLeft = scrolled[n] || 0; });
    if (focused) {
      const same = [...made.querySelectorAll(focused.tagName)].find((one) => nameOf(one) === nameOf(focused));
      if (same) same.focus({ preventScroll: true });
    }
  }

  function show(page) {
    const found = partsOf(page);
    const names = [...found.keys()];
    if (names.join() !== [...parts.keys()].join()) {
      if (isTypedIn(main)) return false;
      main.replaceChildren(...[...page.querySelector("main").childNodes].map((node) => document.importNode(node, true)));
      for (const name of names) {
        const old = document.getElementById(name), fresh = page.getElementById(name);
        if (old && !main.contains(old)) replace(old, fresh);
      }
      parts = found;
      return true;
    }
    let isWhole = true;
    for (const name of names) {
      if (found.get(name) === parts.get(name)) continue;
      const old = document.getElementById(name);
      if (isTypedIn(old)) { isWhole = false; continue; }
      replace(old, page.getElementById(name));
      parts.set(name, found.get(name));
    }
    return isWhole;
  }

  async function update(fresh) {
    if (asking) return;
    asking = true;
    clearTimeout(timer);
    let next_s = 10;
    try {
      const headers = { "if-none-match": `"${tag}"` };
      if (fresh) headers["cache-control"] = "no-cache";
      const answer = await fetch(location.href, { headers, credentials: "same-origin", cache: "no-store" });
      if (answer.redirected) { location.reload(); return; }
      next_s = Number(answer.headers.get("x-next-look")) || 10;
      if (answer.status === 200) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (show(page)) tag = page.querySelector("main").dataset.tag;
        say("");
      } else if (answer.status === 304) {
        say("");
      } else {
        say(`The gateway answers with ${answer.status}: what is shown may be old. It is asked again.`);
      }
    } catch (error) {
      say("The gateway does not answer: what is shown may be old. It is asked again.");
    } finally {
      asking = false;
      plan(next_s);
    }
  }

  function plan(next_s) {
    clearTimeout(timer);
    if (document.hidden) return;
    timer = setTimeout(() => {
      if (Date.now() - touched > idle_ms()) {
        stopped = true;
        say("Nobody was here for a while: the page looks no more until you move, touch it or type.");
      } else {
        update(false);
      }
    }, Math.max(1, next_s) * 1000);
  }

  // Somebody who comes back wants to see how things are now.
  function touch() {
    const away_ms = Date.now() - touched;
    touched = Date.now();
    if (stopped || away_ms > 60000) { stopped = false; update(true); }
  }

  for (const event of ["pointermove", "pointerdown", "keydown", "scroll", "focus"]) {
    addEventListener(event, touch, { passive: true });
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { clearTimeout(timer); } else { touched = Date.now(); stopped = false; update(true); }
  });
  again.hidden = false;
  again.addEventListener("click", () => update(true));
  // What an action has said is said once.
  const url = new URL(location.href);
  if (url.searchParams.has("done")) {
    url.searchParams.delete("done");
    url.searchParams.delete("n");
    history.replaceState(null, "", url);
    parts.set("part-done", '<p id="part-done" data-part=""></p>');
  }
  plan(tag ? 2 : 1);
})();
