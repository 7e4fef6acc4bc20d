# Sourced by scripts/setup: the data of `reprise experiment`. apps/cli/experiment/installed_data.h says
# where the program looks for it and what its manifest holds.

fortunes=/usr/share/games/fortunes

# The files of sayings, without their indices and the links to them.
fortune_files() { find "$fortunes" -maxdepth 1 -type f ! -name '*.*' | LC_ALL=C sort; }

# Each saying on a line, with the file that it is in as its label.
labelled_fortunes() {
  printf 'sentence\tlabel\n'
  fortune_files | while IFS= read -r file; do
    LC_ALL=C awk -v label="$(basename "$file")" '
      function put() {
        gsub(/[ \t\r\001-\037]+/, " ", text)
        sub(/^ /, "", text)
        sub(/ $/, "", text)
        if (text != "") print text "\t" label
        text = ""
      }
      $0 == "%" { put(); next }
      { text = text " " $0 }
      END { put() }' "$file"
  done
}

# Writes to $1 the one file of scikit-learn's wheel that is wanted. An index of LibTorch's wheels, which
# REPRISE_PIP_OPTIONS may name, need not have it; pip's own has.
fetch_digits() {
  local download
  download=$(mktemp -d)
  # shellcheck disable=SC2086  # several options in one variable
  { [ -n "${REPRISE_PIP_OPTIONS:-}" ] && download_wheel "$download" $REPRISE_PIP_OPTIONS 2>/dev/null; } ||
    download_wheel "$download" ||
    { rm -rf "$download" && fail "pip could not download scikit-learn, which has the digits; set REPRISE_PIP_OPTIONS"; }
  "$REPRISE_PYTHON" - "$download" "$1" <<'PYTHON' || { rm -rf "$download" && fail "scikit-learn's wheel has no digits"; }
import pathlib, sys, zipfile
folder, target = map(pathlib.Path, sys.argv[1:])
wheel = next(folder.glob("*.whl"))
target.write_bytes(zipfile.ZipFile(wheel).read("sklearn/datasets/data/digits.csv.gz"))
PYTHON
  rm -rf "$download"
}

download_wheel() {
  "$REPRISE_PYTHON" -m pip download -qq --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$1" "${@:2}" scikit-learn
}

# Lines of kind, path and origin.
manifest() {
  local pods
  pods=$(dpkg -L perl-doc | awk '/\/pod\/perl[^\/]*\.pod$/ && !found++')
  [ -f "$pods" ] || fail "the package perl-doc has put no text anywhere; reinstall it"
  printf 'text\t%s\tfortunes %s\n' "$fortunes" "$(version_of fortunes)"
  printf 'text\t%s\tperl-doc %s\n' "$(dirname "$pods")" "$(version_of perl-doc)"
  printf 'labels\tfortunes.tsv\tfortunes %s\n' "$(version_of fortunes)"
  printf 'digits\tdigits.csv.gz\tscikit-learn\n'
}
version_of() { dpkg-query -W -f='${Version}' "$1"; }

setup_experiments() {
  local folder=${REPRISE_EXPERIMENT_DATA:-} package missing=()
  if [ -z "$folder" ]; then
    [ -n "${XDG_DATA_HOME:-}${HOME:-}" ] || fail "neither HOME nor XDG_DATA_HOME is set; set REPRISE_EXPERIMENT_DATA to a folder"
    folder=${XDG_DATA_HOME:-$HOME/.local/share}/reprise/experiments
  fi
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    fail "--experiments takes texts from packages of Debian and Ubuntu, and there is no apt here; give texts with --text"
  for package in fortunes perl-doc; do
    has_package "$package" || missing+=("$package")
  done
  install_packages "${missing[@]}"
  [ -d "$fortunes" ] || fail "the package fortunes has put nothing into $fortunes; reinstall it"

  mkdir -p "$folder" || fail "cannot make $folder; set REPRISE_EXPERIMENT_DATA to a folder that can be written"
  # Each file is written beside its place first, so that what is there is whole.
  if [ ! -s "$folder/digits.csv.gz" ]; then
    step "digits: from the wheel of scikit-learn"
    fetch_digits "$folder/digits.csv.gz.partial"
    mv "$folder/digits.csv.gz.partial" "$folder/digits.csv.gz"
  fi
  if [ ! -s "$folder/fortunes.tsv" ]; then
    labelled_fortunes >"$folder/fortunes.tsv.partial"
    mv "$folder/fortunes.tsv.partial" "$folder/fortunes.tsv"
  fi
  manifest >"$folder/manifest.tsv.partial"
  mv "$folder/manifest.tsv.partial" "$folder/manifest.tsv"
  step "data of experiments in $folder"
}
