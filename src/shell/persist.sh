# The prelude of a script whose surroundings carry over: sh persist.sh DIR STATE SH RUNNER PATH
# Read by the user's own shell in place of the script, which it then reads. POSIX sh.
dtc_dir=$1 dtc_state=$2 dtc_sh=$3 dtc_runner=$4 dtc_path=$5
shift 5

# Saved by `sh`, so that the format is the same whatever the shell; in a child, so that nothing of it stays.
dtc_save() {
  [ "$dtc_dir" ] || return 0
  (
    set +eu
    trap - EXIT
    exec "$dtc_sh" "$dtc_runner" save "$dtc_dir" "$dtc_state" "$dtc_path" "$PWD"
  ) </dev/null >/dev/null 2>&1
  dtc_dir=
}

trap dtc_save EXIT
# shellcheck disable=SC1091
. "$dtc_dir/script"
dtc_code=$?
dtc_save
exit $dtc_code
