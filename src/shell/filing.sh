# The part of runner.sh that puts a lease's files in their places. Read by runner.sh, whose functions and variables it
# uses. POSIX sh.
# shellcheck disable=SC2154 # variables of runner.sh
#
# Beside the workspaces, for a sandbox may have one lease after the other:
#   files/stage/ID/     what was uploaded: each content under its file's key, and `plan`, whose lines are
#                       ACCESS MODE BYTES KEY PATH|     (ACCESS: ro or rw), and at its end `end`
#   files/owned/KEY     path of a file that is the lease's: it goes when no plan names it any more
#   files/written/KEY   a file that was written once, and is the user's now

files=${base%/*}/files failed=''
stage=$files/stage/$attempt owned=$files/owned written=$files/written

# A path may have anything but control characters in it, and not every `echo` writes that as it is.
fail() {
  failed=yes
  printf 'dtc1 %s failed %s: %s\n' "$attempt" "$path" "${1%%"$newline"*}"
}

# The next line of the plan.
next() {
  read -r access mode bytes key path && path=${path%"|"} && [ "$access" != end ]
}

# Whether all of it was uploaded.
whole() {
  access=''
  while next; do
    size_of "$stage/$key"
    [ -f "$stage/$key" ] && [ "$size" = "$bytes" ] || return 1
  done <"$stage/plan"
  [ "$access" = end ]
}

# Ends whoever else is at it, for another controller, or for a call that nobody waits for any more: the newest plan counts.
alone() {
  for other in "$files/stage"/*; do
    [ "$other" != "$stage" ] || continue
    one='' since=''
    [ ! -f "$other/pid" ] || read -r one since <"$other/pid"
    case $one in 0 | 1 | "$$") ;; *) lives "$one" "$since" && kill -KILL "$one" ;; esac
    rm -rf "$other"
  done
} 2>/dev/null

# Removes what is ours and not in the plan. What is a directory by now is somebody else's.
remove() {
  for own in "$owned"/*; do
    if [ ! -f "$own" ] || [ -e "$stage/${own##*/}" ]; then continue; fi
    IFS= read -r path <"$own"
    if [ -h "$path" ] || [ ! -d "$path" ]; then
      said=$(rm -f "$path" 2>&1) || { fail "$said"; continue; }
    fi
    rm -f "$own"
  done
}

# Puts the file in its place, at once or not at all: it is made whole beside it.
put_file() {
  dir=${path%/*} new=${path%/*}/.dtc-new
  if [ -d "$path" ]; then fail 'a directory is there; remove it, or choose another path'; return 1; fi
  # What is right already keeps its time. Not every sandbox has cmp.
  if [ -f "$path" ] && [ ! -h "$path" ] && cmp -s "$stage/$key" "$path" && mark && chmod "$mode" "$path"; then
    return 0
  fi 2>/dev/null
  # Not in a subshell, which would go on when this shell is ended.
  {
    umask 022 && mkdir -p "${dir:-/}" && umask 077 && rm -rf "$new" && cat "$stage/$key" >"$new" && chmod "$mode" "$new" &&
      mark && mv -f "$new" "$path"
  } 2>"$stage/said" && return 0
  umask 077
  rm -rf "$new"
  said=''
  IFS= read -r said <"$stage/said"
  fail "${said:-it could not be written}"
  return 1
}

# Writes down that the file is the lease's.
mark() { [ "$access" != ro ] || printf '%s\n' "$path" >"$owned/$key"; }

file() {
  export LC_ALL=C
  umask 077
  start_of $$
  # A copy of this text may be at it already.
  set -C
  { echo "$$ $started" >"$stage/pid"; } 2>/dev/null || { say busy; exit 1; }
  set +C
  if ! whole 2>/dev/null || ! mkdir -p "$owned" "$written"; then
    say incomplete
    rm -rf "$stage"
    exit 1
  fi
  alone
  remove
  while next; do
    if [ "$access" = ro ]; then
      before=''
      [ ! -e "$owned/$key" ] || before=yes
      put_file || [ "$before" ] || rm -f "$owned/$key"
    elif [ -e "$written/$key" ] || { put_file && printf '' >"$written/$key"; }; then
      rm -f "$owned/$key"
    fi
  done <"$stage/plan"
  rm -rf "$stage"
  if [ "$failed" ]; then say unfinished; else say filed; fi
}
