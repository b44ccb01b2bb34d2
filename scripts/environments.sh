# Functions of the scripts that make Python environments. To be sourced in the tree's top directory.
#
# uv installs several times faster than pip. The uv on PATH is used; else pip fetches the one that requirements/uv.lock
# pins, once, into build/uv. If there is no uv for this machine, or uv fails, pip installs everything: uv does not
# read pip.conf, so an index that only pip.conf names is known to pip alone.

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
        fetch_uv || { uv= && echo "There is no uv for this machine: pip installs instead, more slowly." >&2; }
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
    PIP_USER=0 "$pip" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-compile \
        --only-binary :all: --require-hashes -r requirements/uv.lock --target build/uv/new >&2 &&
        rm -rf build/uv/venv && mv build/uv/new "build/uv/$version" && "$uv" --version >/dev/null
}

# make_environment DIRECTORY: an empty one of $python, in place of what is there.
make_environment() {
    rm -rf "$1"
    if [ -n "$uv" ]; then "$uv" venv --quiet --python "$python" "$1"; else "$python" -m venv "$1"; fi
}

# fill DIRECTORY STEPS: run STEPS, a function that calls `install`; once more with pip if it fails with uv.
fill() {
    directory=$1
    if [ -n "$uv" ]; then
        if "$2"; then return; fi
        echo "uv failed (what it said is above): trying pip, which is slower." >&2
        uv=
        make_environment "$directory"
    fi
    "$2" || fail "pip could not install that; what it said is above."
}

# install ARGUMENTS…: without resolving, because the locks are complete. Modules are compiled at their first
# import: a start needs a third of them, which takes 0.4 s of CPU time; all would take 5 s.
install() {
    if [ -n "$uv" ]; then
        set -- "$uv" pip install --python "$directory/bin/python" --no-deps "$@"
        if [ -t 2 ]; then
            "$@"
            return
        fi
    else
        set -- "$directory/bin/python" -m pip install --disable-pip-version-check --no-deps --no-compile "$@"
    fi
    { "$@" || touch "$directory/failed"; } 2>&1 | progress "$*"
    ! rm "$directory/failed" 2>/dev/null
}

# What an installer prints in, a few lines out. uv: all but the list of packages. pip: on a terminal a counter, elsewhere
# every twentieth package; an error whole. A loop of the shell, because mawk reads a pipe only in blocks.
progress() {
    all=$(grep -c '^[a-z0-9].*==' "${1##* }" 2>/dev/null) || all=1
    n=0
    while IFS= read -r line; do
        case ${uv:+uv}:$line in
        uv:" + "* | uv:" - "* | uv:" ~ "*) ;;
        uv:* | :*ERROR* | :*error:*) printf '%s\n' "$line" ;;
        :"Collecting "* | :"Processing "* | :"Obtaining "*)
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
