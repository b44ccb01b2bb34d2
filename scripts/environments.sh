# Functions of the scripts that make Python environments. To be sourced in the tree's top directory.
#
# uv installs several times faster than pip. The uv on PATH is used; else pip fetches the one that requirements/uv.lock
# pins, once, into build/uv. If there is no uv for this machine, or uv fails for a reason that pip may not share, pip installs
# everything. What went wrong is said in one sentence; build/setup-*.log has all that the installers said.

fail() {
    echo "holdfast: $*" >&2
    exit 1
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
can_make_venv() { command -v uv >/dev/null || "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# $python: python3 if it will do, else the newest that will. Each is run, not just found: a shim may be empty.
pick_python() {
    lacking=
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        new_enough "$python" || continue
        if can_make_venv "$python"; then
            # The interpreter itself: python3 may be the one in the .venv that we are about to remove.
            python=$("$python" -c 'import sys; print(sys._base_executable)')
            network_settings
            return
        fi
        lacking=${lacking:-$python}
    done
    [ -n "$lacking" ] || fail "Python 3.11 or newer is needed and was not found. Install it" \
        "(Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python3), then try again."
    package=$("$lacking" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    fail "$lacking cannot make a virtual environment: its venv or ensurepip module is missing." \
        "Install it (Debian, Ubuntu: apt install $package), or install uv, then try again."
}

# Take the lock on this file descriptor of the shell, which holds it until it ends or closes it. With a second argument:
# fail instead of waiting. Python does it, because macOS has no flock command.
lock() {
    "$python" -c 'import fcntl, sys
try: fcntl.flock(int(sys.argv[1]), fcntl.LOCK_EX | (fcntl.LOCK_NB if sys.argv[2:] else 0))
except BlockingIOError: sys.exit(1)' "$@"
}

# $uv: the uv to use, or nothing.
find_uv() {
    if uv=$(command -v uv); then return; fi
    version=$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements/uv.lock)
    mkdir -p build/uv
    exec 8>build/uv/lock
    lock 8
    uv=$(pwd -P)/build/uv/$version/bin/uv
    if ! "$uv" --version >/dev/null 2>&1; then
        echo "Fetching uv $version, which installs faster than pip (about 20 MB) …" >&2
        log=build/setup-uv.log
        if ! fetch_uv >$log 2>&1; then
            known_cause
            uv=
            echo "There is no uv for this machine ($log says why): pip installs instead, more slowly." >&2
        fi
    fi
    exec 8>&-
}

# With the pip of $python if it has one: making an environment only for this would take longer than the fetching.
fetch_uv() {
    rm -rf build/uv/new build/uv/venv "build/uv/$version"
    pip=$python
    if ! "$pip" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv build/uv/venv || return
        pip=build/uv/venv/bin/python
    fi
    "$pip" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-compile \
        --only-binary :all: --require-hashes -r requirements/uv.lock --target build/uv/new &&
        rm -rf build/uv/venv && mv build/uv/new "build/uv/$version" && "$uv" --version >/dev/null
}

# make_environment DIRECTORY: an empty one of $python, in place of what is there.
make_environment() {
    log=build/setup-${1##*/}.log
    mkdir -p build
    rm -rf "$1"
    if [ -n "$uv" ]; then
        "$uv" venv --quiet --python "$python" "$1" >>"$log" 2>&1 && return
    else
        "$python" -m venv "$1" >>"$log" 2>&1 && return
    fi
    known_cause
    tail -n 12 "$log" >&2
    fail "an environment could not be made in $1; what was said last is above, the rest in $log."
}

# fill DIRECTORY STEPS: run STEPS, a function that calls `install`; once more with pip if it fails with uv. What an earlier run
# has installed is kept: a set-up that was interrupted goes on from there.
fill() {
    directory=$1
    log=build/setup-${1##*/}.log
    mkdir -p build
    : >"$log"
    if [ -n "$uv" ]; then
        if "$2"; then return; fi
        known_cause
        echo "uv failed ($log has what it said): trying pip, which is slower." >&2
        uv=
        "$directory/bin/python" -m pip --version >/dev/null 2>&1 || make_environment "$directory"
    fi
    if "$2"; then return; fi
    known_cause
    tail -n 12 "$log" >&2
    fail "pip could not install that; what it said last is above, the rest in $log."
}

# Fail with a sentence if $log shows a cause that another try, or another installer, would meet as well.
known_cause() {
    again="then try again: it goes on from there."
    proxy=${HTTPS_PROXY:-${https_proxy:-${ALL_PROXY:-${all_proxy:-${HTTP_PROXY:-${http_proxy:-}}}}}}
    if said 'No space left on device|Disk quota exceeded|os error (28|122)'; then
        fail "the disk is full: make room (about 1 GB, in this directory, your caches and ${TMPDIR:-/tmp}), $again"
    elif [ -n "$proxy" ] && said 'proxy|tunnel'; then
        fail "the proxy that your environment or pip's settings name cannot be used: correct or unset HTTPS_PROXY, $again"
    elif said 'invalid peer certificate|UnknownIssuer|CERTIFICATE_VERIFY_FAILED|InvalidCertificate'; then
        fail "the package index's certificate is not trusted here: install ca-certificates, or name your bundle in SSL_CERT_FILE, $again"
    elif said 'THESE PACKAGES DO NOT MATCH THE HASHES|Hash mismatch'; then
        fail "the package index sent another file than the lock names ($log says which): use another index, $again"
    elif said '(status code|HTTP error|Client Error|status client error).{0,12}(401|403|407)|(401|403|407) (Client Error|Unauthorized|Forbidden)'; then
        fail "the package index refused the request ($log says which): check its address and credentials, $again"
    elif said 'dns error|error sending request|Could not connect|onnection refused|onnection reset|NewConnectionError|name resolution|Max retries exceeded|imed out|Network is unreachable|Request failed after'; then
        fail "the package index cannot be reached: is there a network? Behind a proxy set HTTPS_PROXY; an index of your own: PIP_INDEX_URL;" "$again"
    elif said 'Permission denied|os error 13'; then
        fail "a file cannot be written ($(grep -i -m 1 -E 'permission denied|os error 13' "$log" | tail -c 160)): make it yours, $again"
    fi
}
said() { grep -q -i -E "$1" "$log"; }

# What pip's settings say of indexes, proxies and certificates holds here, also for uv. The others (user, target,
# require-virtualenv, no-binary, …) are for the user's own installations, and would break this one.
network_settings() {
    eval "$("$python" scripts/pip_settings.py)"
}

# install ARGUMENTS…: without resolving, because the locks are complete. Modules are compiled at their first
# import: a start needs a third of them, which takes 0.4 s of CPU time; all would take 5 s.
install() {
    if [ -n "$uv" ]; then
        set -- "$uv" pip install --python "$directory/bin/python" --no-deps "$@"
        if [ -t 2 ] && "$@"; then return; fi # else once more, to have in the log what it says
    else
        set -- "$directory/bin/python" -m pip install --disable-pip-version-check --no-deps --no-compile "$@"
    fi
    { "$@" 2>&1 || touch "$directory/failed"; } | tee -a "$log" | progress "$*"
    ! rm "$directory/failed" 2>/dev/null
}

# What an installer prints in, a few lines out. uv: its counts. pip: on a terminal a counter, elsewhere every
# twentieth package. A loop of the shell, because mawk reads a pipe only in blocks.
progress() {
    all=$(grep -c '^[a-z0-9].*==' "${1##* }" 2>/dev/null) || all=1
    n=0
    while IFS= read -r line; do
        case ${uv:+uv}:$line in
        uv:Resolved* | uv:Prepared* | uv:Installed* | uv:Uninstalled* | uv:Checked*) printf '%s\n' "$line" ;;
        :"Collecting "* | :"Processing "* | :"Obtaining "* | :"Requirement already satisfied"*)
            n=$((n + 1))
            if [ -t 2 ]; then
                printf '\r  %d of %d packages: %-40.40s' $n "$all" "${line#* }"
            elif [ $((n % 20)) = 0 ]; then
                printf '  %d of %d packages\n' $n "$all"
            fi
            ;;
        :"Installing collected"*)
            [ ! -t 2 ] || printf '\r%-72s\r' ""
            [ $n = 1 ] || echo "  installing $n packages"
            ;;
        esac
    done >&2
}
