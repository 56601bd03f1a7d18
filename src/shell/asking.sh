# The part of runner.sh that asks about an attempt and ends it: wait, fence, kill, sweep. Read by runner.sh, whose functions
# and variables it uses. POSIX sh.
# shellcheck disable=SC2154 # variables of runner.sh

# Whatever a script has put in the place of one of our files (a directory, a FIFO, text that is no number) must neither
# hold us up nor end us, so nothing is read but plain files, and nothing is reckoned with that was not looked at.

# What the guard says: of a runner its pid, its start and the uptime then; a word of who else has taken it.
guarded() {
  runner='' since='' begin=''
  [ ! -f "$guard" ] || read -r runner since begin _ <"$guard"
} 2>/dev/null

# Whether nobody may start it any more.
closed() { guarded; [ "$runner" = fenced ] || [ "$runner" = cleared ]; }

# Whether the runner that holds the guard still lives. A guard without content is just being written.
alive() {
  until_then=''
  while guarded; [ ! "$runner" ] && [ -f "$guard" ]; do
    now
    until_then=${until_then:-$((hundredths + 50))}
    [ "$hundredths" -lt "$until_then" ] || return 1
    pause 01
  done
  lives "$runner" "$since"
} 2>/dev/null

# The outcome as it was written, into $result and $how; fails where there is none that can be read.
outcome() {
  result=''
  [ -f "$dir/exit" ] || return 1
  read -r code from to how more <"$dir/exit"
  numbers "$code" "${from%.*}" "${to%.*}" && [ ! "$more" ] || return 1
  case ${from#*.}.${to#*.} in [0-9][0-9].[0-9][0-9]) ;; *) return 1 ;; esac
  case $how in full | background | nostart | lost) result="$code $from $to" ;; *) return 1 ;; esac
} 2>/dev/null

# Whether there is nothing to wait for.
settled() {
  outcome && return
  [ -e "$guard" ] || return 1
  closed || ! alive
}

# Holds the caller's request until the attempt has ended, for $1 seconds at most; five when nobody starts it.
# It sleeps in reading a FIFO, which the runner writes to at the end. The FIFO's other end is the output of a `sleep`:
# when that ends, so does the reading. That is after a second, and later every five, for a runner can be killed.
await() {
  now
  deadline=$((hundredths + $1 * 100)) unseen_until=$((hundredths + 500)) fifo=$base/wait/$attempt.$$ nap=1
  if [ "$1" -le 0 ] || settled; then return; fi
  # While it is open for both, opening one end does not block. (A redirection that fails here ends no shell.)
  # shellcheck disable=SC2094
  if ! { mkfifo "$fifo" && { exec 7<"$fifo"; } 8<>"$fifo"; }; then fifo=''; fi
  # Only now, for before it nobody would have woken us.
  until settled || { now && [ "$hundredths" -ge $deadline ]; }; do
    [ -e "$guard" ] || [ "$hundredths" -lt $unseen_until ] || break
    timer='' since='' word=''
    smaller $nap $(((deadline - hundredths + 99) / 100))
    [ "$fifo" ] && { sleep "$least" >&8 7<&- 8>&- & timer=$!; } 8>/proc/self/fd/7
    [ "$timer" ] || { pause 05; continue; }
    start_of $timer && since=$started
    read -r word <&7
    [ "$word" ] && lives $timer "$since" && kill $timer
    [ $nap = 5 ] || [ ! -e "$guard" ] || nap=$((nap + 1))
  done
  [ ! "$fifo" ] || { exec 7<&-; rm -f "$fifo"; }
} 2>/dev/null

# $3 bytes of file $1 after the first $2, in hexadecimal: the answer travels as JSON text, in which bytes that are not
# UTF-8 are lost.
hex() { [ "$3" -le 0 ] || od -An -v -tx1 -j "$2" -N "$3" <"$1" | tr -d ' \n'; }

# The smaller of two numbers, into $least.
smaller() { if [ "$1" -lt "$2" ]; then least=$1; else least=$2; fi; }

# A line "NAME BYTES SHA256 HEAD TAIL" about the output $1, "-" for what is empty or unknown. Where all of it is no
# longer than the two together, all of it is the tail.
describe() {
  file=$dir/$1 after=0 digest=- whole=$2
  counted "$1" || whole=''
  numbers "$after" || after=0
  size_of "$file"
  on_disk=$size
  size_of "$file.tail"
  bytes=$((on_disk + after))
  if [ "$whole" ] && [ $bytes = 0 ]; then
    digest=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
  elif [ "$whole" ] && [ "$after" = 0 ] && command -v sha256sum >/dev/null; then
    digest=$(sha256sum <"$file") && digest=${digest%% *} || digest=-
  fi
  first=0 last=$bytes
  if [ $bytes -gt $((head + tail)) ] || [ "$after" -gt "$size" ]; then
    smaller "$head" "$on_disk"
    first=$least
    smaller "$tail" $((bytes - first))
    last=$least
    # What came between the beginning and the end is gone.
    [ "$after" -le "$size" ] || { smaller "$last" "$size"; last=$least; }
  fi
  smaller "$last" "$size"
  printf '%s %s %s ' "$1" $bytes "$digest"
  if [ "$first" = 0 ]; then printf -; else hex "$file" 0 "$first"; fi
  printf ' '
  if [ "$last" = 0 ]; then printf -; fi
  hex "$file" $((on_disk - last + least)) $((last - least))
  hex "$file.tail" $((size - least)) "$least"
  echo
} 2>/dev/null

ended() {
  whole=yes
  # What was there at the end may have been taken away since.
  [ "$how" = nostart ] || { counted stdout && counted stderr; } || how=lost
  [ "$how" != lost ] || whole=''
  if [ -e "$dir/killed" ]; then say "ended $result $how"; else say "done $result $how"; fi
}

# A line "dtc1 ATTEMPT STATE [CODE T0 T1 HOW]" (STATE: done by itself, ended by kill, ...), for some of them a line for
# each output.
state() {
  if outcome; then
    ended
  elif ! [ -e "$guard" ]; then
    if [ -e "$base/session/$mark" ]; then say unseen; else say lost; fi
    return
  elif closed; then
    say "$runner"
    return
  elif alive; then
    say running
    return
  # It may have ended between the two looks.
  elif outcome; then
    ended
  else
    runner='' since='' whole=''
    [ ! -f "$base/session/$mark" ] || read -r runner since <"$base/session/$mark"
    if lives "$runner" "$since"; then say died alive; else say died gone; fi
  fi
  describe stdout "$whole"
  describe stderr "$whole"
}

# The last line says that nothing was cut off.
report() { state; say end; }

# Makes sure that attempt $1, whose outcome is recorded, never starts, and notes that its files may go; fails while a
# live runner has more to write. The guard outlives the files, so that a copy that arrives late finds the attempt taken.
clear() {
  case $1 in '' | *[!A-Za-z0-9-]*) return 1 ;; esac
  guard=$base/guard/$1 dir=$base/attempt/$1
  claim cleared || closed || {
    outcome || ! alive || return 1
    [ -f "$guard" ] || rm -rf "$guard"
    echo cleared >"$guard"
  }
  gone="$gone $1"
}

# Removes the files of what was cleared, what was uploaded too late, and what a waiter that was ended has left.
remove_cleared() {
  [ "$gone" ] || return 0
  set --
  for one in $gone; do
    for place in "$base/attempt/$one" "$base/input/$one" "$base/input/$one".* "$base/wait/$one".*; do
      if [ -e "$place" ] || [ -h "$place" ]; then set -- "$@" "$place"; fi
    done
    # More would not fit on a command line.
    [ $# -lt 500 ] || { rm -rf "$@"; set --; }
  done
  [ $# = 0 ] || rm -rf "$@"
} 2>/dev/null

clear_collected() {
  gone=''
  for one in "$@"; do clear "$one"; done
  remove_cleared
} 2>/dev/null

# Clears every attempt but those that are named and those that run.
sweep() {
  gone='' kept=" $* "
  for place in "$base/attempt"/* "$base/input"/*; do
    one=${place##*/} one=${one%%.*}
    case "$kept$gone " in *" $one "*) ;; *) clear "$one" ;; esac
  done
  remove_cleared
  for fifo in "$base/wait"/*; do [ -d "/proc/${fifo##*.}" ] || rm -rf "$fifo"; done
  # shellcheck disable=SC1090
  . "$base/filing-${0##*/runner-}"
  alone
} 2>/dev/null

# --- ending ----------------------------------------------------------------------------------------------------------

# Every process that may be sent a signal, as " PID:PARENT:SESSION:START" each, into $table: not init, not ourselves.
survey() {
  table=''
  for stat in /proc/[0-9]*; do
    start_of "${stat#/proc/}" || continue
    case $pid in '' | *[!0-9]* | 0 | 1 | "$$") continue ;; esac
    # shellcheck disable=SC2086
    set -- ${line##*) }
    table="$table $pid:$2:$4:$started"
  done
}

# When process $1 of the table began, into $leader; empty where it is gone.
leader_of() {
  leader=''
  case $table in *" $1:"*) leader=${table#*" $1:"} leader=${leader%% *} leader=${leader##*:} ;; esac
}

# Everything the attempt started, into $found: by the cookie in its environment; its child; what was found before (a
# pid and its start, so that one whose parent is gone is not forgotten); their sessions; and all their descendants.
targets() {
  cookies=" $(grep -lszxF "DTC_ATTEMPT=$attempt" /proc/[0-9]*/environ 2>/dev/null | while IFS=/ read -r _ _ p _; do printf '%s ' "$p"; done)"
  child=none child_start=none
  [ ! -f "$dir/child" ] || read -r child child_start <"$dir/child"
  numbers "$child" "$child_start" || child=none child_start=none
  guarded
  shell=''
  [ ! -f "$base/session/$mark" ] || read -r shell _ <"$base/session/$mark"
  survey
  leaders=' '
  # Sessions that others are in: ours, the runner's, the shell's.
  start_of $$
  # shellcheck disable=SC2086
  set -- ${line##*) }
  foreign=" 0 $4 "
  for process in $table; do
    leaders="$leaders${process%%:*} "
    case ${process%%:*} in "$runner" | "$shell") process=${process%:*} foreign="$foreign${process##*:} " ;; esac
  done
  # A session is known by the start of its leader, too: its number may be another process's by now.
  found=' ' sessions=' ' before=$known_sessions known_sessions=''
  for session in $before; do
    leader_of "${session%%:*}"
    case $leader in '' | "${session#*:}") sessions="$sessions${session%%:*} " known_sessions="$known_sessions $session" ;; esac
  done
  for process in $table; do
    p=${process%%:*} since=${process##*:}
    case " $known " in *" $p:$since "*) ;; *)
      case $cookies in *" $p "*) ;; *) [ "$p:$since" = "$child:$child_start" ] || continue ;; esac ;;
    esac
    found="$found$p " process=${process%:*}
    session=${process##*:}
    # Only a session that was begun by something found, or by something that is gone.
    case $foreign$sessions in *" $session "*) continue ;; esac
    case $leaders in *" $session "*) [ "$session" = "$p" ] || continue ;; esac
    leader_of "$session"
    sessions="$sessions$session " known_sessions="$known_sessions $session:${leader:--}"
  done
  # The child's own, when nothing that was found is in it; not when the number is another process's by now.
  case $leaders$foreign in *" $child "*) ;; *) sessions="$sessions$child " known_sessions="$known_sessions $child:$child_start" ;; esac
  more=yes
  while [ "$more" ]; do
    more=
    for process in $table; do
      p=${process%%:*} rest=${process#*:}
      parent=${rest%%:*} rest=${rest#*:}
      case $found in *" $p "*) continue ;; esac
      case $found in *" $parent "*) ;; *) case $sessions in *" ${rest%%:*} "*) ;; *) continue ;; esac ;; esac
      found="$found$p " more=yes
    done
  done
  for process in $table; do
    p=${process%%:*}
    case $found in *" $p "*) case " $known " in *" $p:${process##*:} "*) ;; *) known="$known $p:${process##*:}" ;; esac ;; esac
  done
  found=${found# } found=${found% }
} 2>/dev/null

# TERM, and KILL once $1 seconds have passed since. As no call is held for longer than $2 seconds, when that was and what
# was found is written down; fails while there is time left.
end_all() {
  termed='' known='' known_sessions=''
  [ ! -f "$dir/killed" ] || { read -r termed && read -r known && read -r known_sessions; } <"$dir/killed"
  targets
  now
  { numbers "$termed" && [ "$termed" -le "$hundredths" ]; } || termed=''
  if ! [ "$termed" ]; then
    termed=$hundredths
    # shellcheck disable=SC2086 # a list of checked pids
    [ "$found" ] && { kill -TERM $found; kill -CONT $found; } 2>/dev/null
  fi
  deadline=$((termed + $1 * 100)) leave=$((hundredths + $2 * 100)) tries=0
  while [ "$found" ] && [ "$hundredths" -lt $deadline ]; do
    if [ "$hundredths" -ge $leave ]; then
      printf '%s\n%s\n%s\n' "$termed" "$known" "$known_sessions" >"$dir/killed" && return 1
      # A grace period that cannot be written down would begin anew with every call.
      break
    fi
    tries=$((tries + 1))
    if [ $tries -lt 10 ]; then pause 02; else pause 20; fi
    targets
    now
  done
  tries=0 leave=$((hundredths + 100))
  while [ "$found" ] && { [ $tries -lt 5 ] || [ "$hundredths" -lt $leave ]; }; do
    # shellcheck disable=SC2086
    kill -KILL $found
    tries=$((tries + 1))
    [ $tries -lt 5 ] || pause 02
    targets
    now
  done
  return 0
} 2>/dev/null

# The runner has what it needs to write the outcome down, which is up to ten seconds where an output is held open and the
# machine is slow; $1 at most. It may be stopped or stuck: it is woken, and ended if that does not help.
end_runner() {
  smaller "$1" 12
  [ "$least" -ge 3 ] || least=3
  for signal in CONT KILL; do
    outcome && return
    alive || return
    case $runner in 0 | 1 | "$$") return ;; esac
    kill -$signal "$runner" 2>/dev/null
    await "$least"
    least=2
  done
  wake
}

# Takes the attempt away from whoever would start it, or says that somebody has it already.
taken() {
  if [ -e "$base/session/$mark" ] && claim fenced; then
    for place in "$input" "$input".*; do rm -rf "$place"; done
    return 1
  fi
}

kill_attempt() {
  if taken; then
    if ! closed; then
      # What ended by itself is left as it is, with what it left in the background.
      if [ -e "$dir/killed" ] || ! outcome; then
        left=0
        # Only of one that runs, and by a clock that has not begun anew since.
        if [ "$2" -gt 0 ] && alive && numbers "${begin%.*}"; then
          now
          [ "${begin%.*}" -gt "${uptime%.*}" ] || left=$((${begin%.*} + $2 - ${uptime%.*}))
        fi
        if [ $left -gt 0 ]; then say "early $left"; say end; return; fi
        # Not `: >file`: when that fails it ends the shell. Made also where our files are gone, for what ends now.
        [ -d "$dir" ] || { rm -f "$dir"; mkdir -p "$dir"; }
        [ -f "$dir/killed" ] || { rm -rf "$dir/killed"; echo >"$dir/killed"; } 2>/dev/null
        end_all "$1" "$3" || { say "ending $(((deadline - hundredths + 99) / 100))"; say end; return; }
        [ ! "$found" ] || { say "survivors $found"; say end; return; }
        # Without a guard our files were removed: what it started is found by its cookie, its runner is not.
        [ ! -e "$guard" ] || end_runner "$3"
      fi
    fi
  fi
  report
}

head=$4 tail=$5
case $op in
  wait)
    await "$6"
    report
    shift 6
    clear_collected "$@"
    ;;
  fence)
    taken || :
    report
    ;;
  sweep)
    if [ -e "$base/session/$attempt" ]; then
      ready=$attempt
      shift 2
      sweep "$@"
      attempt=$ready
      say ready
    fi
    ;;
  kill) kill_attempt "$6" "$7" "$8" ;;
esac
