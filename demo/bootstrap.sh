# Sourced by demo/run and tests/run: `bootstrap "" ` or `bootstrap dev` leaves a virtual environment in .venv with the
# package and its pinned dependencies, and a Java that Spark can use. Does nothing when all is there already. The demo can
# do without Java, so `bootstrap ""` only says that there is none. `venv` names another folder, `pythons` what may make it.
venv=.venv
pythons="python3 python3.14 python3.13 python3.12 python3.11 python"

die() {
  printf '%s\n' "$*" >&2
  exit 3
}

# The first Python that the locks are for, by its own word.
find_python() {
  local candidate
  for candidate in $pythons; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "Python 3.11 to 3.14 is needed and none is on the PATH. Debian, Ubuntu: apt-get install python3 python3-venv"
}

# `"17.0.15"` and `"1.8.0_292"` give 17 and 1; nothing where there is no Java, which is no failure here.
java_major() {
  local java=java
  [ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
  "$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1 || true
}

# No Java: the end for the tests, a remark for the demo.
no_java() {
  local extra="$1"
  shift
  [ -n "$extra" ] && die "$*"
  printf '%s\n' "$*" >&2
}

need_java() {
  local extra="$1" major
  major=$(java_major)
  [ "${major:-0}" -ge 17 ] && return
  if [ -z "${JAVA_HOME:-}" ] && [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then
    echo "Spark needs Java 17 or newer: installing a headless one with apt-get" >&2
    apt-get update -qq >&2 || { no_java "$extra" "apt-get update failed; install Java 17 or newer by hand"; return 0; }
    # Debian 12 and Ubuntu have 17, Debian 13 has 21.
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >&2 ||
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openjdk-21-jre-headless >&2 ||
      { no_java "$extra" "apt-get could not install Java; install Java 17 or newer by hand"; return 0; }
    major=$(java_major)
    [ "${major:-0}" -ge 17 ] && return
  fi
  no_java "$extra" "Spark needs Java 17 or newer (found: ${major:-none}). Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17; then set JAVA_HOME if java is not on the PATH"
}

install() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
    die "pip could not install the dependencies; the reason is above"
}

# The lines of lock.txt up to the end of a part: `locked demo`.
locked() {
  sed "/^# end of $1\$/q" lock.txt
}

bootstrap() {
  local extra="$1" part="${1:-demo}" wanted stamp # dev has all of demo too
  need_java "$extra"
  if [ ! -x "$venv/bin/python" ]; then
    local python
    python=$(find_python) || exit 3
    echo "creating $venv with $("$python" --version)" >&2
    "$python" -m venv "$venv" || die "no virtual environment could be made. Debian, Ubuntu: apt-get install python3-venv"
  fi
  # One stamp for each extra, so that the demo does not install the test tools.
  stamp="$venv/installed${extra:+-$extra}"
  wanted=$({ cat pyproject.toml && locked "$part"; } | cksum)
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "installing the packages of lock.txt into $venv (a few minutes the first time)" >&2
    # Files with the hashes of the lock and no others. The packages of `build` build packages that come as source.
    locked build >"$venv/build.txt"
    locked "$part" >"$venv/$part.txt"
    install --require-hashes -r "$venv/build.txt"
    install --require-hashes --no-build-isolation -r "$venv/$part.txt"
    install --no-deps --no-build-isolation -e .
    printf '%s\n' "$wanted" >"$stamp"
  fi
}
