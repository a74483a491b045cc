# What ./quickstart and ./check share: the Debian packages, and how many compilers to run at once.
# Sourced by bash.

build_packages=(
  g++ cmake ninja-build ccache git
  libtorch-dev libopenblas0-openmp  # this BLAS keeps to the threads that a rank was given
  libgloo-dev  # headers of the Gloo that libtorch holds: ranks of several processes
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libfmt-dev zlib1g-dev
  libpng-dev libjpeg-dev
  dataset-fashion-mnist
)
check_packages=(libopenmpi-dev openmpi-bin libgtest-dev libgmock-dev libbenchmark-dev clang-format clang-tidy-16)

# Installs those of the named packages that are missing. Asks nothing; does nothing when all are here.
install_packages() {
  if ! command -v dpkg-query > /dev/null; then
    echo "This is no Debian system: assuming that the equivalents of these are installed: $*"
    return
  fi
  local missing=() package sudo=()
  for package in "$@"; do
    if [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null) != installed ]]; then
      missing+=("$package")
    fi
  done
  if ((${#missing[@]} == 0)); then
    return
  fi
  if ((EUID != 0)); then
    if ! command -v sudo > /dev/null; then
      echo "Missing packages. As root: apt-get install ${missing[*]}" >&2
      return 1
    fi
    sudo=(sudo)
  fi
  echo "Installing ${missing[*]}"
  "${sudo[@]}" apt-get -qq update &&
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get -qq install --yes --no-install-recommends "${missing[@]}"
}

# As many as there are processors, but one for each 2 GB of memory at most: what a source that
# includes much of libtorch needs.
num_build_jobs() {
  awk -v cpus="$(nproc)" '/^MemTotal/ {
    jobs = int($2 / 2e6); if (jobs > cpus) jobs = cpus; print jobs < 1 ? 1 : jobs
  }' /proc/meminfo
}
