# The part of runner.sh that asks about an attempt and ends it: wait, fence, kill. Read by runner.sh, whose functions
# and variables it uses. POSIX sh.
# shellcheck disable=SC2154 # variables of runner.sh

# Whether the runner that holds the guard still lives. A guard without content is just being written.
alive() {
  tries=0 runner='' since=''
  while [ $tries -lt 50 ]; do
    read -r runner since _ <"$guard"
    [ "$runner" ] && break
    tries=$((tries + 1))
    pause 01
  done
  lives "${runner:-none}" "$since"
} 2>/dev/null

# Whether there is nothing to wait for.
settled() {
  [ ! -s "$dir/exit" ] || return 0
  [ -e "$guard" ] || return 1
  word=''
  read -r word _ <"$guard"
  case $word in fenced | cleared) return 0 ;; esac
  ! alive
} 2>/dev/null

# Holds the caller's request until the attempt has ended, for $1 seconds at most; five when nobody starts it.
# It sleeps in reading a FIFO, which the runner writes to at the end. The FIFO's other end is the output of a `sleep`:
# when that ends, so does the reading. That is once a second, for a runner can be killed.
await() {
  now
  deadline=$((hundredths + $1 * 100)) unseen_until=$((hundredths + 500)) fifo=$base/wait/$attempt.$$
  if [ "$1" -le 0 ] || settled; then return; fi
  # While it is open for both, opening one end does not block. (A redirection that fails here ends no shell.)
  # shellcheck disable=SC2094
  if ! { mkfifo "$fifo" && { exec 7<"$fifo"; } 8<>"$fifo"; }; then fifo=''; fi
  # Only now, for before it nobody would have woken us.
  until settled || { now && [ "$hundredths" -ge $deadline ]; }; do
    [ -e "$guard" ] || [ "$hundredths" -lt $unseen_until ] || break
    timer='' since='' word=''
    [ "$fifo" ] && { sleep 1 >&8 7<&- 8>&- & timer=$!; } 8>/proc/self/fd/7
    [ "$timer" ] || { pause 05; continue; }
    start_of $timer && since=$started
    read -r word <&7
    [ "$word" ] && lives $timer "$since" && kill $timer
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
  read -r _ after <"$file.size" && [ "$after" != - ] || after=0 whole=''
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
  read -r result <"$dir/exit"
  if [ -e "$dir/killed" ]; then say "ended $result"; else say "done $result"; fi
}

# A line "dtc1 ATTEMPT STATE [CODE T0 T1 HOW]" (STATE: done by itself, ended by kill, ...), for some of them a line for
# each output.
state() {
  whole=yes
  if [ -s "$dir/exit" ]; then
    ended
  elif ! [ -e "$guard" ]; then
    if [ -e "$base/session/$mark" ]; then say unseen; else say lost; fi
    return
  elif read -r word _ <"$guard"; [ "$word" = fenced ] || [ "$word" = cleared ]; then
    say "$word"
    return
  elif alive; then
    say running
    return
  # It may have ended between the two looks.
  elif [ -s "$dir/exit" ]; then
    ended
  else
    runner='' since='' whole=''
    read -r runner since <"$base/session/$mark"
    if lives "${runner:-none}" "$since"; then say died alive; else say died gone; fi
  fi
  describe stdout "$whole"
  describe stderr "$whole"
}

# The last line says that nothing was cut off.
report() { state; say end; }

# The guard outlives the attempt's files, so that a copy that arrives late still finds the attempt taken. What was
# uploaded late goes too.
clear_collected() {
  gone=
  for one in "$@"; do
    case $one in '' | *[!A-Za-z0-9-]*) continue ;; esac
    word=
    [ -e "$base/guard/$one" ] && read -r word _ <"$base/guard/$one"
    case $word in
      fenced | cleared) ;;
      *)
        [ -e "$base/attempt/$one/exit" ] || [ -e "$base/attempt/$one/killed" ] || continue
        echo cleared >"$base/guard/$one"
        ;;
    esac
    gone="$gone $one"
  done
  [ "$gone" ] || return 0
  # A waiter that was ended leaves its FIFO.
  for one in $gone; do
    for fifo in "$base/wait/$one".*; do [ ! -p "$fifo" ] || rm -f "$fifo"; done
  done
  # shellcheck disable=SC2086 # a list of checked names
  (cd "$base/attempt" && rm -rf $gone; cd "$base/input" && rm -rf $gone)
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

# Everything the attempt started, into $found: by the cookie in its environment; its child; what was found before (a
# pid and its start, so that one whose parent is gone is not forgotten); their sessions; and all their descendants.
targets() {
  cookies=" $(grep -lszxF "DTC_ATTEMPT=$attempt" /proc/[0-9]*/environ 2>/dev/null | while IFS=/ read -r _ _ p _; do printf '%s ' "$p"; done)"
  child=none child_start=none
  [ ! -s "$dir/child" ] || read -r child child_start <"$dir/child"
  runner='' foreign=" 0 "
  [ ! -e "$guard" ] || read -r runner _ <"$guard"
  read -r shell _ <"$base/session/$mark"
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
  found=' ' sessions=" $known_sessions "
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
    sessions="$sessions$session "
  done
  # The child's own, when nothing that was found is in it; not when the number is another process's by now.
  case $leaders$foreign in *" $child "*) ;; *) sessions="$sessions$child " ;; esac
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
  known_sessions=$sessions
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
  { read -r termed && read -r known && read -r known_sessions; } 2>/dev/null <"$dir/killed"
  targets
  now
  if ! [ "$termed" ]; then
    termed=$hundredths
    # shellcheck disable=SC2086 # a list of checked pids
    [ "$found" ] && { kill -TERM $found; kill -CONT $found; } 2>/dev/null
  fi
  deadline=$((termed + $1 * 100)) leave=$((hundredths + $2 * 100)) tries=0
  while [ "$found" ] && [ "$hundredths" -lt $deadline ]; do
    if [ "$hundredths" -ge $leave ]; then
      printf '%s\n%s\n%s\n' "$termed" "$known" "$known_sessions" >"$dir/killed"
      return 1
    fi
    tries=$((tries + 1))
    if [ $tries -lt 10 ]; then pause 02; else pause 20; fi
    targets
    now
  done
  tries=50
  while [ "$found" ] && [ $tries -gt 0 ]; do
    # shellcheck disable=SC2086
    kill -KILL $found 2>/dev/null
    tries=$((tries - 1))
    [ $tries -gt 45 ] || pause 02
    targets
  done
}

# The runner itself may be stopped or stuck. It is woken, and ended if that does not help: nothing of it is left then.
end_runner() {
  for signal in CONT KILL; do
    [ ! -s "$dir/exit" ] || return
    alive || return
    case $runner in '' | *[!0-9]* | 0 | 1 | "$$") return ;; esac
    kill -$signal "$runner" 2>/dev/null
    await 2
  done
  wake
}

# Takes the attempt away from whoever would start it, or says that somebody has it already.
taken() {
  if [ -e "$base/session/$mark" ] && claim fenced; then
    rm -rf "$input"
    return 1
  fi
}

kill_attempt() {
  if taken; then
    word=''
    [ -e "$guard" ] && read -r word _ <"$guard"
    case $word in
      fenced | cleared) ;;
      *)
        # What ended by itself is left as it is, with what it left in the background.
        if ! [ -s "$dir/exit" ] || [ -e "$dir/killed" ]; then
          begin='' since=''
          # The script's beginning; until it is written down, the runner's (in ticks, a hundred a second).
          [ ! -e "$dir/begun" ] || read -r begin <"$dir/begun"
          [ "$begin" ] || [ ! -e "$guard" ] || { alive || :; }
          [ "$begin" ] || begin=$((${since:-0} / 100))
          now
          left=$((${begin%.*} + $2 - ${uptime%.*}))
          if [ "$2" -gt 0 ] && [ $left -gt 0 ]; then say "early $left"; say end; return; fi
          # Not `: >file`: when that fails it ends the shell. Made also where our files are gone, for what ends now.
          [ -e "$dir/killed" ] || { mkdir -p "$dir" && echo >"$dir/killed"; }
          end_all "$1" "$3" || { say "ending $(((deadline - hundredths + 99) / 100))"; say end; return; }
          [ ! "$found" ] || { say "survivors $found"; say end; return; }
          # Without a guard our files were removed: what it started is found by its cookie, its runner is not.
          [ ! -e "$guard" ] || { await 3; end_runner; }
        fi
        ;;
    esac
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
  kill) kill_attempt "$6" "$7" "$8" ;;
esac
