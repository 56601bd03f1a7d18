# The runner: what a SandboxLease puts into its sandbox, and what every SandboxCommand is run by.
# POSIX sh (dash, bash, busybox ash, zsh's sh). docs/protocol.md explains it; src/shell/protocol.rs is its other end.
#
#   sh runner.sh session SESSION                           proves that a shell reads its input, and leaves its mark
#   sh runner.sh check   SESSION                           the same, if the mark is there
#   sh runner.sh run     ATTEMPT SESSION WORKDIR           runs the script on standard input, at most once
#   sh runner.sh wait    ATTEMPT SESSION SECONDS TAIL [COLLECTED...]   waits for the end, reports, tidies up
#   sh runner.sh fence   ATTEMPT SESSION 0 TAIL            makes sure that it does not start, and reports
#   sh runner.sh kill    ATTEMPT SESSION GRACE TAIL AFTER  makes sure that it does not run: never started, or ended
#                                                          (once it has run for AFTER seconds)
#
# Files, all below the directory of this file ($base, mode 0700):
#   session/SESSION    this shell was alive once; missing later means that somebody removed our files
#   guard/ATTEMPT      "PID START" of the runner | "fenced" (may never start) | "cleared" (collected by the controller)
#   attempt/ATTEMPT/   script, out and err (FIFOs), stdout, stderr, begun (uptime), child (pid), killed (it was sent a
#                      signal), exit ("CODE T0 T1 HOW"; written last, atomically)

base=${0%/*} op=$1 attempt=$2 session=$3
dir=$base/attempt/$attempt guard=$base/guard/$attempt

say() { echo "dtc1 $attempt $*"; }

# Kernel start time (clock ticks since boot) of process $1 into $started: a pid alone is soon somebody else's.
start_of() {
  started=
  read -r line 2>/dev/null <"/proc/$1/stat" || return 1
  # shellcheck disable=SC2086 # the fields after the command name
  set -- ${line##*) }
  [ "$1" != Z ] && started=${20}
} 2>/dev/null

# Takes the right to decide about the attempt. Exactly one taker wins: noclobber creates or fails.
claim() { (set -C; echo "$1" >"$guard") 2>/dev/null; }

now() { read -r uptime _ </proc/uptime; }

finish() { echo "$1 $2 $3 $4" >"$dir/exit.new" && mv -f "$dir/exit.new" "$dir/exit"; }

# From here on what comes out of the FIFO $1 is thrown away, in place of its reader $2: nobody will look at it, and it
# must not fill the disk. The writer must not notice: there is a reader at any time.
drain() {
  { [ -p "$1" ] && exec 3<>"$1"; } 2>/dev/null || return 0
  (trap '' HUP INT TERM; exec 3>&- cat) <"$1" >/dev/null 2>&1 &
  start_of "$2" && kill -KILL "$2" 2>/dev/null
  exec 3>&-
}

run() {
  workdir=$4
  [ -e "$base/session/$session" ] || { say lost; exit 98; }
  start_of $$
  claim "$$ $started" || { say duplicate; exit 97; }
  mask=$(umask)
  umask 077
  now; begin=$uptime
  if ! { mkdir "$dir" && cat >"$dir/script" && mkfifo "$dir/out" "$dir/err"; }; then
    finish 126 "$begin" "$begin" nostart; say nostart; exit 98
  fi
  if ! [ -d "$workdir" ] || ! [ -x "$workdir" ]; then
    echo "working directory $workdir: not there, or not a directory that can be entered" >"$dir/stderr"
    finish 126 "$begin" "$begin" nostart; say nostart; exit 98
  fi
  # Deleting the session sends TERM to this group. Handled, not ignored: the script gets the defaults back.
  trap : HUP INT TERM PIPE
  echo "$begin" >"$dir/begun"
  # A FIFO and a reader, not a plain file: `echo x >/dev/stderr` would truncate a file.
  (trap '' HUP INT TERM; exec cat) <"$dir/out" >"$dir/stdout" 2>/dev/null &
  out_reader=$!
  (trap '' HUP INT TERM; exec cat) <"$dir/err" >"$dir/stderr" 2>/dev/null &
  err_reader=$!
  (
    umask "$mask"
    read -r me _ </proc/self/stat && echo "$me" >"$dir/child"
    export DTC_ATTEMPT="$attempt"
    cd "$workdir" || exit 126
    set -- sh -l
    command -v bash >/dev/null 2>&1 && set -- bash -l
    command -v setsid >/dev/null 2>&1 && set -- setsid "$@"
    exec "$@" "$dir/script"
  ) <"/dev/null" >"$dir/out" 2>"$dir/err"
  code=$?
  now
  # What the script left in the background may hold its outputs open for ever; what is there by now is the result.
  how=background tries=0
  while [ $tries -lt 25 ]; do
    start_of $out_reader || start_of $err_reader || { how=full; break; }
    tries=$((tries + 1))
    pause 01
  done
  if [ $how = background ]; then
    drain "$dir/out" $out_reader
    drain "$dir/err" $err_reader
  fi
  [ -d "$dir" ] || { how=lost; mkdir -p "$dir"; }
  finish $code "$begin" "$uptime" $how
  say exit $code
  exit $code
}

# Whether the runner that holds the guard still lives. A guard without content is just being written.
alive() {
  tries=0 pid='' since=''
  while [ $tries -lt 50 ]; do
    read -r pid since _ <"$guard"
    [ "$pid" ] && break
    tries=$((tries + 1))
    pause 01
  done
  start_of "${pid:-none}" && [ "$started" = "$since" ]
}

size_of() { if [ -e "$1" ]; then size=$(($(wc -c <"$1"))); else size=0; fi; }

digest_of() {
  digest=-
  # Of a huge output it would take longer than the caller waits.
  [ -e "$1" ] && [ "$size" -le 67108864 ] && command -v sha256sum >/dev/null 2>&1 && digest=$(sha256sum <"$1") && digest=${digest%% *}
}

# A line "dtc1 ATTEMPT STATE [CODE T0 T1 HOW]" (STATE: done by itself, ended by kill, ...), then per stream
# "NAME BYTES SHA256 HEX-OF-THE-TAIL".
# Hexadecimal, because the answer travels as JSON text, in which bytes that are not UTF-8 are lost.
ended() {
  read -r result <"$dir/exit"
  if [ -e "$dir/killed" ]; then say "ended $result"; else say "done $result"; fi
}

report() {
  if [ -s "$dir/exit" ]; then
    ended
  elif ! [ -e "$guard" ]; then
    if [ -e "$base/session/$session" ]; then say unseen; else say lost; fi
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
    say died
  fi
  for name in stdout stderr; do
    size_of "$dir/$name"
    digest_of "$dir/$name"
    printf '%s %s %s ' $name $size "$digest"
    if [ $size -gt 0 ]; then tail -c "$tail" <"$dir/$name" | od -An -v -tx1 | tr -d ' \n'; fi
    echo
  done
}

# Sleeps for $1 hundredths of a second, or for a second where fractions are not known; $slept says how long it was.
pause() { slept=$1; sleep "0.$1" 2>/dev/null || { slept=100; sleep 1; }; }

# Holds the caller's request until the attempt has ended, for $1 seconds at most; five when nobody starts it.
await() {
  left=$(($1 * 100)) unseen=500 step=05
  while [ $left -gt 0 ] && [ $unseen -gt 0 ] && ! [ -s "$dir/exit" ]; do
    if [ -e "$guard" ]; then
      read -r word _ <"$guard"
      case $word in fenced | cleared) break ;; esac
      alive || break
    fi
    pause $step
    left=$((left - ${slept#0}))
    [ -e "$guard" ] || unseen=$((unseen - ${slept#0}))
    # A command that takes long need not be looked at so often.
    [ $left -gt $(($1 * 90)) ] || step=25
  done
}

# The guard outlives the attempt's files, so that a copy that arrives late still finds the attempt taken.
clear_collected() {
  for one in "$@"; do
    case $one in '' | *[!A-Za-z0-9-]*) continue ;; esac
    [ -e "$base/attempt/$one/exit" ] || [ -e "$base/attempt/$one/killed" ] || continue
    echo cleared >"$base/guard/$one"
    rm -rf "$base/attempt/$one"
  done
}

# Everything the attempt started, into $found: by the cookie in its environment, or by the session of its child.
targets() {
  found='' child=''
  [ -s "$dir/child" ] && read -r child <"$dir/child"
  cookies=" $(grep -lszxF "DTC_ATTEMPT=$attempt" /proc/[0-9]*/environ 2>/dev/null | while IFS=/ read -r _ _ p _; do printf '%s ' "$p"; done)"
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    p=${line%% *}
    # shellcheck disable=SC2086 # the fields after the command name
    set -- ${line##*) }
    [ "$1" = Z ] && continue
    # Never a signal to what was not checked: not to init, not to ourselves.
    case $p in '' | *[!0-9]* | 0 | 1 | "$$") continue ;; esac
    case $cookies in *" $p "*) found="$found $p" ;; *) [ "$child" ] && [ "$4" = "$child" ] && found="$found $p" ;; esac
  done
}

end_all() {
  targets
  # shellcheck disable=SC2086 # a list of checked pids
  [ "$found" ] && { kill -TERM $found; kill -CONT $found; } 2>/dev/null
  tries=$(($1 * 10))
  while [ "$found" ] && [ $tries -gt 0 ]; do
    pause 10
    tries=$((tries - 1))
    [ "$slept" = 10 ] || tries=$((tries - 9))
    targets
  done
  tries=50
  while [ "$found" ] && [ $tries -gt 0 ]; do
    # shellcheck disable=SC2086
    kill -KILL $found 2>/dev/null
    tries=$((tries - 1))
    pause 02
    targets
  done
}

# The runner itself may be stopped or stuck. It is woken, and ended if that does not help: nothing of it is left then.
end_runner() {
  for signal in CONT KILL; do
    [ -s "$dir/exit" ] && return
    alive || return
    case $pid in '' | *[!0-9]* | 0 | 1 | "$$") return ;; esac
    kill -$signal "$pid" 2>/dev/null
    await 2
  done
}

# Takes the attempt away from whoever would start it, or says that somebody has it already.
taken() { ! { [ -e "$base/session/$session" ] && claim fenced; }; }

kill_attempt() {
  if taken; then
    word=''
    [ -e "$guard" ] && read -r word _ <"$guard"
    case $word in
      fenced | cleared) ;;
      *)
        # What ended by itself is left as it is, with what it left in the background.
        if ! [ -s "$dir/exit" ] || [ -e "$dir/killed" ]; then
          if [ "$2" -gt 0 ] && read -r begin <"$dir/begun"; then
            now
            left=$((${begin%.*} + $2 - ${uptime%.*}))
            [ $left -le 0 ] || { say "early $left"; return; }
          fi
          # Not `: >file`: when that fails it ends the shell. Made also where our files are gone, for what ends now.
          mkdir -p "$dir" && echo kill >"$dir/killed"
          end_all "$1"
          [ "$found" ] && { say "survivors$found"; return; }
          # Without a guard our files were removed: what it started is found by its cookie, its runner is not.
          [ -e "$guard" ] && { await 3; end_runner; }
        fi
        ;;
    esac
  fi
  report
}

case $op in
  session)
    session=$attempt
    : >"$base/session/$session" && echo "dtc1 $session ready"
    ;;
  check) [ -e "$base/session/$attempt" ] && echo "dtc1 $attempt ready" ;;
  run) run "$@" ;;
  wait)
    tail=$5
    await "$4"
    report
    shift 5
    clear_collected "$@"
    ;;
  fence)
    tail=$5
    taken || :
    report
    ;;
  kill)
    tail=$5
    kill_attempt "$4" "$6"
    ;;
esac
