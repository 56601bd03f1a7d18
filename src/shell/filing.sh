# The part of runner.sh that puts a lease's files in their places. Read by runner.sh, whose functions and variables it
# uses. POSIX sh.
# shellcheck disable=SC2154 # variables of runner.sh
#
# Beside the workspaces, for a sandbox may have one lease after the other:
#   files/stage/ID/     what was uploaded: each content under its file's key, and `plan`, whose lines are
#                       ACCESS MODE BYTES KEY PATH|     (ACCESS: ro or rw), and at its end `end`; who is at it: `pid`;
#                       and the path of what is just being made beside its target: `new`
#   files/owned/KEY     path of a file that is the lease's, and the directory that it really is in: it goes when no plan
#                       names it any more
#   files/written/KEY   a file that was written once, and is the user's now; KEY.new: that is just being written

files=${base%/*}/files failed='' keys=' '
stage=$files/stage/$attempt owned=$files/owned written=$files/written
taken='a directory is there; remove its entry, or choose another path' unnoted='it cannot be noted that it was written'

# A path may have anything but control characters in it, and not every `echo` writes that as it is.
fail() {
  failed=yes
  printf 'dtc1 %s failed %s: %s\n' "$attempt" "$path" "${1%%"$newline"*}"
}

# The same in the words of the program that failed.
fail_as_said() {
  said=''
  IFS= read -r said <"$stage/said"
  fail "${said:-$1}"
} 2>/dev/null

# The next line of the plan.
next() {
  read -r access mode bytes key path && path=${path%"|"} && [ "$access" != end ]
}

# Whether all of it was uploaded; its keys.
whole() {
  access='' keys=' '
  while next; do
    size_of "$stage/$key"
    [ -f "$stage/$key" ] && [ "$size" = "$bytes" ] || return 1
    keys="$keys$key "
  done <"$stage/plan"
  [ "$access" = end ]
}

# Process $1, its children, and its group, into $those.
those_of() {
  those=''
  for stat in /proc/[0-9]*; do
    start_of "${stat#/proc/}" || continue
    # shellcheck disable=SC2086
    set -- "$1" ${line##*) }
    case $pid in 0 | 1 | "$$") continue ;; esac
    case " $pid $3 $4 " in *" $1 "*) those="$those $pid" ;; esac
  done
}

# Ends whoever is at the stage $1, with all it has started, and removes it; fails where that does not end. It is moved
# first, so that who comes too late finds nothing there.
end_stage() {
  old=$1.$$ one='' since='' new='' those=''
  mv "$1" "$old" || return 0
  [ ! -f "$old/pid" ] || read -r one since <"$old/pid"
  case $one in 0 | 1 | "$$") one='' ;; esac
  if lives "$one" "$since"; then
    kill -STOP "$one"
    now
    leave=$((hundredths + 500))
    while those_of "$one" && [ "$those" ] && [ "$hundredths" -lt $leave ]; do
      # shellcheck disable=SC2086 # a list of pids
      kill -KILL $those
      pause 02
      now
    done
  fi
  [ ! "$those" ] || return 1
  [ ! -f "$old/new" ] || IFS= read -r new <"$old/new"
  case $new in */.dtc-new-*) rm -f "$new" ;; esac
  rm -rf "$old"
}

# Ends whoever else is at it, for another controller, or for a call that nobody waits for any more: the newest plan counts.
alone() {
  for other in "$files/stage"/*; do
    [ "$other" = "$stage" ] || [ ! -e "$other" ] || end_stage "$other" || return 1
  done
} 2>/dev/null

# What directory $1 really is, into $real; empty where there is none, or none that a line can name.
resolve() {
  real=$(cd -P -- "${1:-/}" && pwd -P && echo .) || real=''
  real=${real%"$newline."}
  case $real in *"$newline"*) real='' ;; esac
} 2>/dev/null

# Removes what is ours and not in the plan, or not where the plan's path leads by now. Nothing through a link that was not
# there when it was written. What is a directory by now is somebody else's.
remove() {
  for own in "$owned"/*; do
    path='' place=''
    [ ! -f "$own" ] || { IFS= read -r path && IFS= read -r place; } <"$own"
    case $path in /*) ;; *) continue ;; esac
    case $keys in *" ${own##*/} "*)
      resolve "${path%/*}"
      [ "$real" != "$place" ] || continue
      ;;
    esac
    target=${place%/}/${path##*/} real=''
    [ ! "$place" ] || resolve "$place"
    if [ "$real" ] && [ "$real" = "$place" ] && { [ -h "$target" ] || [ ! -d "$target" ]; }; then
      rm -f "$target" 2>"$stage/said" || { fail_as_said 'it could not be removed'; continue; }
    fi
    rm -f "$own"
  done
}

# Whether it is right already; then it keeps its time. Not every sandbox has cmp and stat.
is_right() {
  [ -f "$path" ] && [ ! -h "$path" ] && cmp -s "$stage/$key" "$path" && bits=$(stat -c %a "$path") &&
    numbers "$bits" && [ "$((0$bits))" = "$((0$mode))" ]
} 2>/dev/null

# Renames it over its target. A command may make a directory there at any time.
replace() {
  if [ -h "$path" ] && [ -d "$path" ]; then rm -f "$path"; fi
  if [ -d "$path" ]; then echo "$taken" >&2; return 1; fi
  mv -f "$new" "$path" || return
  [ -d "$path" ] && [ -e "$path/${new##*/}" ] || return 0
  rm -f "$path/${new##*/}"
  echo "$taken" >&2
  return 1
}

# Puts the file in its place, at once or not at all: it is made whole beside it.
put_file() {
  dir=${path%/*} new=${path%/*}/.dtc-new-$attempt
  if [ -d "$path" ] && [ ! -h "$path" ]; then fail "$taken"; return 1; fi
  if is_right && mark 2>/dev/null; then return 0; fi
  # Not in a subshell, which would go on when this shell is ended.
  {
    umask 022 && mkdir -p "${dir:-/}" && umask 077 && printf '%s\n' "$new" >"$stage/new" && rm -f "$new" &&
      cat "$stage/$key" >"$new" && chmod "$mode" "$new" && mark && replace
  } 2>"$stage/said" && return 0
  umask 077
  rm -f "$new" 2>/dev/null
  fail_as_said 'it could not be written'
  return 1
}

# Writes down that the file is the lease's.
mark() {
  [ "$access" = ro ] || return 0
  resolve "$dir"
  was='' place=''
  [ ! -f "$owned/$key" ] || { IFS= read -r was && IFS= read -r place; } <"$owned/$key"
  [ "$was" = "$path" ] && [ "$place" = "$real" ] && return 0
  printf '%s\n%s\n' "$path" "$real" >"$owned/$key.new" && mv -f "$owned/$key.new" "$owned/$key"
}

# A file that is the lease's. If it is the user's some day, that will be the first time.
put_owned() {
  before=''
  [ ! -e "$owned/$key" ] || before=yes
  if put_file; then
    rm -f "$written/$key" "$written/$key.new"
  elif [ ! "$before" ]; then
    rm -f "$owned/$key"
  fi
}

# A file that is written once. Noted before, for what cannot be noted would be written over the user's own the next time.
put_once() {
  if [ ! -e "$written/$key" ]; then
    # This shell's forerunner may have been ended between the two.
    if [ ! -e "$written/$key.new" ] || ! { [ -e "$path" ] || [ -h "$path" ]; }; then
      { printf '' >"$written/$key.new"; } 2>/dev/null || { fail "$unnoted"; return; }
      put_file || { rm -f "$written/$key.new"; return; }
    fi
    mv -f "$written/$key.new" "$written/$key" 2>/dev/null || { fail "$unnoted"; return; }
  fi
  rm -f "$owned/$key"
}

file() {
  export LC_ALL=C
  # Also when nobody listens any more.
  trap '' HUP PIPE
  umask 077
  start_of $$
  [ -d "$stage" ] || { say incomplete; exit 1; }
  # A copy of this text may be at it already.
  set -C
  if ! { echo "$$ $started" >"$stage/pid"; } 2>/dev/null; then
    [ ! -s "$stage/pid" ] || { say busy; exit 1; }
    path=$stage
    fail 'it cannot be written there'
    say unfinished
    exit 1
  fi
  set +C
  # Where these were removed, the upload has made them as everybody's.
  chmod go= "$files" 2>/dev/null
  if ! whole 2>/dev/null || ! mkdir -p "$owned" "$written"; then
    say incomplete
    rm -rf "$stage"
    exit 1
  fi
  alone || { say busy; rm -rf "$stage"; exit 1; }
  rm -f "$owned"/*.new
  remove
  access=''
  while next; do
    if [ "$access" = ro ]; then put_owned; else put_once; fi
  done <"$stage/plan"
  # Somebody may have removed it meanwhile.
  [ "$access" = end ] || { say incomplete; exit 1; }
  rm -rf "$stage"
  if [ "$failed" ]; then say unfinished; else say filed; fi
}
