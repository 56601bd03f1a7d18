# The prelude of a script whose surroundings carry over: sh persist.sh DIR STATE SH RUNNER PATH
# Read by the user's own shell in place of the script, which it then reads. POSIX sh.
dtc_dir=$1 dtc_state=$2 dtc_sh=$3 dtc_runner=$4 dtc_path=$5
shift 5

# Saved by `sh`, so that the format is the same whatever the shell; in a child, so that nothing of it stays. Whether it
# worked must change nothing, whatever options the script has set; nor may it show, where the script is traced.
dtc_save() {
  [ "${dtc_dir-}" ] || return 0
  (
    set +eu
    trap - EXIT
    "$dtc_sh" "$dtc_runner" save "$dtc_dir" "$dtc_state" "$dtc_path" "$PWD"
  ) </dev/null >/dev/null 2>&1 || :
  # Where it is read-only by now, it is saved once more.
  if (dtc_dir=); then dtc_dir=; fi
} 2>/dev/null

trap '{ dtc_save; } 2>/dev/null' EXIT
# One command, read as a whole before the script is: its aliases, functions, options and IFS must not change our lines.
# shellcheck disable=SC1091
{ . "$dtc_dir/script"; { set -- "$?"; set +x; dtc_save || :; unset -f exit || :; } 2>/dev/null; exit "$1"; }
