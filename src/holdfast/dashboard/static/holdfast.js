// Makes pages live. Everything works without it: it only spares people the reload button.
//
// A page's parts (data-part) are read anew when something has happened, and put in place of the old ones; what a
// person has opened, written or selected stays. A reply that grows and a log are followed on streams of their own.
"use strict";
(() => {
  const body = document.body;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const dot = document.querySelector("[data-connection]");

  // --- connection ------------------------------------------------------------------------------
  let away = false, dying = false;
  function reachable(yes) {
    if (yes && dying) return;
    if (dot) dot.className = "dot " + (yes ? "on" : "off");
    if (away === !yes) return;
    away = !yes;
    body.classList.toggle("away", away);
  }

  // --- parts -----------------------------------------------------------------------------------
  const keyed = (from) => new Map(all("[data-key]", from).map((node) => [node.dataset.key, node]));

  function replace(old, fresh) {
    // What somebody is writing or has selected stays as it is; so does a box that would only be the same again.
    if (all("textarea, input:not([type=hidden])", old).some((field) => field.value !== field.defaultValue)) return;
    if (old.hasAttribute("data-keep") && old.querySelector("textarea") && fresh.querySelector("textarea")) return;
    const selected = getSelection();
    if (!selected.isCollapsed && old.contains(selected.anchorNode)) { soon(2000); return; }
    const opened = keyed(old);
    for (const [key, node] of keyed(fresh)) {
      const before = opened.get(key);
      if (before && before.tagName === "DETAILS" && before.open) node.open = true;
    }
    const logs = new Map(all("pre[data-log]", old).map((pre) => [pre.dataset.log, pre]));
    for (const pre of all("pre[data-log]", fresh)) {
      const before = logs.get(pre.dataset.log);
      if (before && before.dataset.next !== undefined) {
        if (pre.hasAttribute("data-over")) before.setAttribute("data-over", "");
        pre.replaceWith(before);
      }
    }
    const growing = old.querySelector("[data-reply]"), grown = fresh.querySelector("[data-reply]");
    if (growing && grown && growing.dataset.turn === grown.dataset.turn) grown.replaceWith(growing);
    const row = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    old.replaceWith(fresh);
    if (row) all("a.row", fresh).find((link) => link.getAttribute("href") === row)?.focus();
  }

  function show(page) {
    const atEnd = inTalk();
    for (const fresh of all("[data-part]", page)) {
      const old = document.querySelector(`[data-part="${CSS.escape(fresh.dataset.part)}"]`);
      if (old && old.outerHTML !== fresh.outerHTML) replace(old, fresh);
    }
    body.dataset.live = page.body.dataset.live || "";
    if (atEnd) toEnd();
    follow();
  }

  let reading = false, again = false;
  async function refresh() {
    if (reading) { again = true; return; }
    reading = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, signal: AbortSignal.timeout(10000) });
      if (answer.redirected && new URL(answer.url).pathname === "/login") { location.reload(); return; }
      if (answer.ok) show(new DOMParser().parseFromString(await answer.text(), "text/html"));
      reachable(true);
    } catch { reachable(false); setTimeout(refresh, 250); }
    reading = false;
    if (again) { again = false; soon(); }
  }
  let timer = 0;
  function soon(wait = 150) { if (!timer) timer = setTimeout(() => { timer = 0; refresh(); }, wait); }

  // --- what happens ----------------------------------------------------------------------------
  let events = null;
  function listen() {
    if (!body.dataset.live || events || document.hidden) return;
    events = new EventSource(body.dataset.live);
    events.onopen = () => { if (away) soon(0); reachable(true); };
    events.onmessage = (message) => {
      const watched = body.dataset.watch, happened = JSON.parse(message.data);
      if (happened.type === "messages.read_by_admin") return;  // that was this page, or one like it
      if (!watched || happened.conversation_id === watched) soon();
    };
    events.onerror = () => {
      reachable(false);
      if (events.readyState === EventSource.CLOSED) { events = null; setTimeout(listen, 500); }
      soon(300);
    };
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { events?.close(); events = null; } else { listen(); refresh(); }
  });
  if (document.querySelector("[data-part]")) listen();
  // Beats leave no event; a conversation changes only when something happens in it.
  if (!body.dataset.watch && document.querySelector("[data-part]")) setInterval(() => { if (!document.hidden) soon(); }, 15000);

  // --- a reply that grows, a log that grows ----------------------------------------------------
  function inTalk() {
    const end = document.getElementById("end");
    return end ? end.getBoundingClientRect().top <= innerHeight + 40 && end.getBoundingClientRect().bottom >= 0 : false;
  }
  function toEnd() {
    document.getElementById("end")?.scrollIntoView({ block: "end" });
  }

  let stream = null, streamed = null;
  function follow() {
    const article = document.querySelector("[data-reply]");
    if (!article) { stream?.close(); stream = streamed = null; }
    else if (streamed !== article) {
      stream?.close();
      streamed = article;
      const text = article.querySelector("[data-text]");
      stream = new EventSource(article.dataset.reply);
      stream.onmessage = (message) => {
        const said = JSON.parse(message.data);
        if (said.end || said.error) { stream.close(); soon(0); return; }
        const atEnd = inTalk();
        text.textContent = [...text.textContent].length >= said.at && said.at ? [...text.textContent].slice(0, said.at).join("") + said.text : said.text;
        if (atEnd) toEnd();
      };
      stream.onerror = () => { if (stream && stream.readyState === EventSource.CLOSED) { streamed = null; soon(500); } };
    }
    for (const pre of all("pre[data-log]")) if (!pre.watched) watch(pre);
  }

  function watch(pre) {
    pre.watched = true;
    pre.scrollTop = pre.scrollHeight;
    const look = async () => {
      if (!pre.isConnected) { pre.watched = false; return; }
      const shown = !pre.closest("details") || pre.closest("details").open;
      if (shown && !document.hidden) {
        try {
          const url = new URL(pre.dataset.log, location.href);
          if (pre.dataset.next !== undefined) { url.searchParams.set("after", pre.dataset.next); url.searchParams.delete("tail"); }
          const answer = await fetch(url);
          if (answer.ok) {
            const said = await answer.json();
            const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 20;
            if (pre.dataset.next === undefined) pre.textContent = said.text || "It has said nothing yet.";
            else if (said.text) pre.append(said.text);
            pre.dataset.next = said.next;
            if (atEnd && said.text) pre.scrollTop = pre.scrollHeight;
          }
        } catch { /* the server is away; the page says so */ }
        if (pre.hasAttribute("data-over") && pre.dataset.next !== undefined) return;
      }
      setTimeout(look, 1000);
    };
    look();
  }
  follow();

  // --- forms -----------------------------------------------------------------------------------
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.hasAttribute("data-fatal")) {  // nobody will be left to answer
      event.preventDefault();
      const last = new URLSearchParams(new FormData(form));
      reachable(false);
      dying = true;
      await fetch(form.action, { method: "POST", body: last }).catch(() => {});
      setTimeout(() => { dying = false; soon(0); }, 400);
      return;
    }
    if (!form.hasAttribute("data-quiet")) return;
    event.preventDefault();
    const sent = new URLSearchParams(new FormData(form));
    for (const button of all("button", form)) button.disabled = true;
    try {
      const answer = await fetch(form.action, { method: "POST", body: sent });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!answer.ok) {
        const said = document.createElement("p");
        said.className = "alert";
        said.setAttribute("role", "alert");
        said.textContent = page.querySelector("[role=alert]")?.textContent || "That did not work.";
        form.parentElement.querySelector(".alert")?.remove();
        form.before(said);
        for (const button of all("button", form)) button.disabled = false;
        return;
      }
      const url = new URL(answer.url);
      if (url.pathname !== location.pathname) { location.assign(answer.url); return; }
      const text = form.querySelector("textarea");
      if (text) { text.value = ""; form.closest("[data-keep]")?.removeAttribute("data-keep"); }
      show(page);
      toEnd();
      document.querySelector(".box textarea")?.focus();
    } catch {
      reachable(false);
      soon(300);
      for (const button of all("button", form)) button.disabled = false;
    }
  });
  document.querySelector("form[data-send]")?.requestSubmit();

  const touched = matchMedia("(pointer: coarse)").matches;  // there, Enter is for a new line
  // --- keys ------------------------------------------------------------------------------------
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (event.key === "Escape") { typing?.blur(); for (const menu of all("details.who[open], details.acts[open]")) menu.open = false; return; }
    if (typing) {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !touched && typing.hasAttribute("data-submit")) {
        event.preventDefault();
        if (typing.value.trim()) typing.form.requestSubmit();
      }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const rows = all("[data-row] a.row");
    const at = rows.indexOf(document.activeElement);
    const go = { g: "/", s: "/sessions", n: "/new" }[event.key];
    if (event.key === "/") (document.querySelector("[data-find]") || document.querySelector(".find input"))?.focus();
    else if (event.key === "j") (rows[at + 1] || rows[0])?.focus();
    else if (event.key === "k") (rows[at - 1] || rows[rows.length - 1])?.focus();
    else if (event.key === "m") document.querySelector(".box textarea")?.focus();
    else if (go) location.assign(go);
    else return;
    event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    for (const menu of all("details.who[open], details.acts[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  // --- time ------------------------------------------------------------------------------------
  const skew = Date.now() - (Date.parse(body.dataset.now) || Date.now());  // between this clock and the server's
  const now = () => Date.now() - skew;
  function tick() {
    for (const node of all("time[datetime]:not([data-countdown])")) {
      const seconds = Math.floor((now() - Date.parse(node.dateTime)) / 1000), left = Math.abs(seconds);
      const [size, unit] = [[86400, "day"], [3600, "h"], [60, "min"], [1, "s"]].find(([each]) => left >= each) || [1, "s"];
      const number = Math.floor(left / size), span = `${number} ${unit}${unit === "day" && number !== 1 ? "s" : ""}`;
      const said = seconds < 0 ? `in ${span}` : seconds ? `${span} ago` : "just now";
      if (node.textContent !== said) node.textContent = said;
    }
    for (const node of all("[data-countdown]")) {
      let left = Math.round((Date.parse(node.dateTime) - now()) / 1000);
      const late = left < 0;
      left = Math.abs(left);
      const two = (number) => String(number).padStart(2, "0");
      const days = Math.floor(left / 86400);
      const clock = `${two(Math.floor(left % 86400 / 3600))}:${two(Math.floor(left % 3600 / 60))}:${two(left % 60)}`;
      node.textContent = (late ? "due since " : "in ") + (days ? `${days} d ` : "") + clock;
    }
  }
  tick();
  setInterval(tick, 1000);

  // A conversation opens where people left it: at its end.
  if (location.hash === "#end" || (!location.hash && body.classList.contains("conversation") && !location.search.includes("before="))) toEnd();
})();
