// Makes pages live. Everything works without it: it only spares people the reload button.
//
// The page is fetched again after an event, and its parts (data-part) are changed where they differ: what a person
// has opened, written, selected or scrolled to stays. A running reply and a log have streams of their own.
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
  // A part is changed in place, node by node, so that an open menu, focus, a selection and scrolling stay. Fields
  // keep what was typed: browsers do not show a new default value in a field that a person has changed.
  const keyOf = (node) => node.dataset?.key || node.id || "";
  const written = (form) => all("textarea", form).some((field) => field.value !== field.defaultValue);

  function patch(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.isEqualNode(fresh) || old.hasAttribute("data-busy")) return;
    if (old.hasAttribute("data-reply") && old.dataset.turn === fresh.dataset.turn) return;  // its stream writes it
    if (old.hasAttribute("data-log") && old.dataset.next !== undefined) {
      if (fresh.hasAttribute("data-over")) old.setAttribute("data-over", "");
      return;
    }
    // The same message sent twice is one turn only while its idempotency key stays.
    if (old.type === "hidden" && old.form && written(old.form)) return;
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !(name === "open" && old.tagName === "DETAILS")) old.removeAttribute(name);
    }
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value && !(name === "open" && old.tagName === "DETAILS")) old.setAttribute(name, value);
    }
    patchChildren(old, fresh);
  }

  function patchChildren(old, fresh) {
    const wanted = new Set([...fresh.children].map(keyOf).filter(Boolean));
    for (const child of [...old.children]) if (keyOf(child) && !wanted.has(keyOf(child))) child.remove();
    const known = new Map([...old.children].map((child) => [keyOf(child), child]));
    const other = (node) => { while (node?.dataset?.own) node = node.nextSibling; return node; };  // than what this script put there
    let at = other(old.firstChild);
    for (const node of [...fresh.childNodes]) {
      const key = keyOf(node);
      if (key && known.has(key)) {
        const same = known.get(key);
        while (at && at !== same && !keyOf(at)) { const over = at; at = other(at.nextSibling); over.remove(); }
        if (at === same) at = other(at.nextSibling); else old.insertBefore(same, at);
        if (same.tagName === node.tagName) patch(same, node); else same.replaceWith(node);
      } else if (!key && at && !keyOf(at) && at.nodeName === node.nodeName) {
        const same = at;
        at = other(at.nextSibling);
        patch(same, node);
      } else old.insertBefore(node, at);
    }
    while (at) { const over = at; at = other(at.nextSibling); over.remove(); }
  }

  function show(page) {
    const atEnd = inTalk();
    for (const fresh of all("[data-part]", page)) {
      const old = document.querySelector(`[data-part="${CSS.escape(fresh.dataset.part)}"]`);
      if (old) patch(old, fresh);
    }
    tick();
    markWords();
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
  const paused = () => document.querySelector("[data-updates]")?.checked === false;
  function soon(wait = 150) { if (!timer && !paused()) timer = setTimeout(() => { timer = 0; refresh(); }, wait); }

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
  // Heartbeats and log lines create no event; a conversation changes only when something happens in it.
  const every = Number(document.querySelector("[data-every]")?.dataset.every) || 15000;
  if (!body.dataset.watch && document.querySelector("[data-part]")) setInterval(() => { if (!document.hidden) soon(); }, every);

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
            if (pre.dataset.next === undefined) pre.textContent = said.text || "No output yet.";
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
    if (form.hasAttribute("data-fatal")) {  // the server is killed and cannot answer
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
    const may = (yes) => { form.toggleAttribute("data-busy", !yes); for (const button of all("button", form)) button.disabled = !yes; };
    may(false);
    try {
      const answer = await fetch(form.action, { method: "POST", body: sent });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!answer.ok) {
        tell(form, page.querySelector("[role=alert]")?.textContent || "The request failed.");
        may(true);
        return;
      }
      const url = new URL(answer.url);
      if (url.pathname !== location.pathname) { location.assign(answer.url); return; }
      const text = form.querySelector("textarea");
      if (text) text.value = "";
      for (const chip of all(".chip", form)) chip.remove();
      tell(form, "");
      may(true);
      show(page);
      toEnd();
      document.querySelector(".box textarea")?.focus();
    } catch {
      reachable(false);
      soon(300);
      may(true);
    }
  });
  document.querySelector("form[data-send]")?.requestSubmit();

  // A list is filtered as one types; its address follows, so that it can be kept and shared.
  let typed = 0;
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-filter]");
    if (event.target.hasAttribute("data-all")) for (const box of event.target.form.elements) if (box.name?.startsWith("id-")) box.checked = event.target.checked;
    if (!form) return;
    clearTimeout(typed);
    typed = setTimeout(() => {
      const asked = [...new FormData(form)].filter(([, value]) => value);
      history.replaceState(null, "", `${location.pathname}${asked.length ? "?" : ""}${new URLSearchParams(asked)}`);
      refresh();
    }, 200);
  });

  // --- attaching -------------------------------------------------------------------------------
  // A picture is sent with the message; a text file becomes part of it, so that one sees what is sent.
  const LARGEST_PICTURE = 3e6, LARGEST_TEXT = 2e5, PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
  const read = (file, how) => new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => fail(reader.error);
    reader[how](file);
  });
  function tell(form, text) {
    form.parentElement.querySelector(".alert")?.remove();
    if (!text) return;
    const said = document.createElement("p");
    said.className = "alert";
    said.dataset.own = "yes";
    said.setAttribute("role", "alert");
    said.textContent = text;
    form.before(said);
  }
  async function attach(form, files) {
    const box = form.querySelector("textarea");
    tell(form, "");
    for (const file of files) {
      if (PICTURES.includes(file.type)) {
        if (file.size > LARGEST_PICTURE) { tell(form, `${file.name} is larger than 3 MB.`); continue; }
        const chip = document.createElement("span"), field = document.createElement("input"), remove = document.createElement("button");
        chip.className = "chip";
        chip.dataset.own = "yes";
        field.type = "hidden";
        field.name = `picture-${form.querySelectorAll(".chip").length}-${file.name}`;
        field.value = await read(file, "readAsDataURL");
        remove.type = "button";
        remove.textContent = "×";
        remove.setAttribute("aria-label", `Remove ${file.name}`);
        remove.onclick = () => chip.remove();
        chip.append(file.name || "picture", field, remove);
        form.prepend(chip);
      } else {
        const text = file.size <= LARGEST_TEXT ? await read(file, "readAsText") : "\0";
        if (text.includes("\0") || text.includes("\uFFFD")) { tell(form, `${file.name} is not a picture or a text file of at most 200 kB.`); continue; }
        box.value += `${box.value && !box.value.endsWith("\n") ? "\n" : ""}${file.name}:\n\`\`\`\n${text.replace(/\n$/, "")}\n\`\`\`\n`;
      }
    }
    box.focus();
  }
  document.addEventListener("change", (event) => {
    if (!event.target.hasAttribute("data-attach")) return;
    attach(event.target.form, [...event.target.files]);
    event.target.value = "";
  });
  document.addEventListener("paste", (event) => {
    const form = event.target.closest?.("form");
    if (!form?.querySelector("[data-attach]") || !event.clipboardData.files.length) return;
    event.preventDefault();
    attach(form, [...event.clipboardData.files]);
  });

  // --- words that were searched for -----------------------------------------------------------
  // Marked without a change of the page: each at the beginning of a word, as the search finds them.
  const sought = new URLSearchParams(location.search).get("find");
  function markWords() {
    const talk = document.querySelector("[data-mark], .messages"), wish = talk?.dataset.mark ?? sought;
    const words = (wish?.match(/[\p{L}\p{N}_]+/gu) || []).slice(0, 20);
    CSS.highlights?.delete("found");
    if (!words.length || !CSS.highlights) return;
    const wanted = new RegExp(`(?<![\\p{L}\\p{N}_])(?:${words.join("|")})`, "giu"), ranges = [];
    const texts = document.createTreeWalker(talk, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      for (const hit of text.data.matchAll(wanted)) {
        const range = new Range();
        range.setStart(text, hit.index);
        range.setEnd(text, hit.index + hit[0].length);
        ranges.push(range);
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  }
  markWords();

  // --- copying ---------------------------------------------------------------------------------
  body.classList.add("scripted");
  async function copied(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
    const field = document.createElement("textarea");  // over plain HTTP browsers offer nothing newer
    field.value = text;
    body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = button.dataset.copy || button.closest(".codeblock").querySelector("pre").textContent;
    button.textContent = await copied(text) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-show]"), field = button && document.getElementById(button.dataset.show);
    if (!field) return;
    const shown = field.type === "password";
    field.type = shown ? "text" : "password";
    button.textContent = shown ? "Hide" : "Show";
    button.setAttribute("aria-pressed", String(shown));
  });

  const touched = matchMedia("(pointer: coarse)").matches;  // there, Enter is for a new line
  // --- keys ------------------------------------------------------------------------------------
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (event.key === "Escape") { typing?.blur(); for (const menu of all("details.drop[open]")) menu.open = false; return; }
    if (typing) {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !touched && typing.hasAttribute("data-submit")) {
        event.preventDefault();
        if (typing.value.trim() || typing.form.querySelector(".chip")) typing.form.requestSubmit();
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
    for (const menu of all("details.drop[open]")) if (!menu.contains(event.target)) menu.open = false;
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
      const [days, hours, minutes] = [Math.floor(left / 86400), Math.floor(left % 86400 / 3600), Math.floor(left % 3600 / 60)];
      const span = days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : minutes >= 10 ? `${minutes} min` : minutes ? `${minutes} min ${left % 60} s` : `${left} s`;
      node.textContent = (late ? "due for " : "in ") + span;
    }
  }
  tick();
  setInterval(tick, 1000);

  // A conversation opens where people left it: at its end.
  if (location.hash === "#end" || (!location.hash && body.classList.contains("conversation") && !location.search.includes("before="))) toEnd();
})();
