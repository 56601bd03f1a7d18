# The runner: what a SandboxLease puts into its sandbox, and what every SandboxCommand is run by.
# POSIX sh (dash, bash, busybox ash, zsh's sh). docs/protocol.md explains it; src/shell/protocol.rs is its other end.
#
#   sh runner.sh session MARK                        proves that a shell reads its input, and leaves the shell's mark
#   sh runner.sh mark    MARK                        leaves a mark that is no shell's
#   sh runner.sh check   MARK                        says whether the mark is there
#   sh runner.sh sweep   MARK [ATTEMPT...]           the same, and clears all attempts but these and those that run
#   sh runner.sh file    ID                          puts the files that were uploaded as files/stage/ID in their places
#   sh runner.sh unfile                              ends whoever is at that, and removes what was uploaded
#   sh runner.sh run     ATTEMPT MARK FORM WORKDIR [INTERPRETER...]   runs a script, at most once, and stays with it
#   sh runner.sh start   ATTEMPT MARK FORM WORKDIR [INTERPRETER...]   the same in a process of its own; comes back at once
#   sh runner.sh wait    ATTEMPT MARK HEAD TAIL SECONDS [COLLECTED...]   waits for the end, reports, tidies up
#   sh runner.sh fence   ATTEMPT MARK HEAD TAIL                      makes sure that it does not start, and reports
#   sh runner.sh kill    ATTEMPT MARK HEAD TAIL GRACE AFTER SECONDS  makes sure that it does not run: never started, or
#                                            ended (once it has run for AFTER seconds); to be repeated while it is ending
# FORM: "uploaded" (input/ATTEMPT has script, env, names, stdin) or "inline=N/M" (they are on standard input: with "persist"
# a line for names, then N lines of env, M lines of the script, and ATTEMPT), then ",persist" ",placed" ",secret" as it
# applies.

SHOWN_BYTES=16384   # of each output, the end: copied to the session's log

# `save DIR STATE PATH DIRECTORY`: writes down the directory and the exported variables that a script ended with. Before
# all else and with positional parameters alone: every variable here may be one of them.
if [ "$1" = save ]; then
  # shellcheck disable=SC1091 # "unset NAMES": what was set for this command alone
  [ ! -f "$2/names" ] || . "$2/names"
  unset DTC_ATTEMPT
  DTC_DIRECTORY=$(pwd && echo .)
  # Of one that was removed only the name is left, which not every `pwd` tells.
  case $DTC_DIRECTORY in /*) DTC_DIRECTORY=${DTC_DIRECTORY%??} ;; *) DTC_DIRECTORY=$5 ;; esac
  export DTC_DIRECTORY
  umask 077
  # The script may have removed it.
  [ -d "${3%/*}" ] || (PATH=$4; mkdir "${3%/*}")
  { [ ! -f "$2/kept" ] || (PATH=$4; cat "$2/kept"); export -p; } >"$3.new" || exit 1
  PATH=$4
  mv -f "$3.new" "$3"
  exit
fi

# `become ATTEMPT DIR BEGIN WANTED PROGRAM...`: sets the job's variables (the file on descriptor 3) and becomes the
# program. After the first line every variable is the user's, so nothing but positional parameters is read.
become() {
  # shellcheck disable=SC1091
  if [ -e /proc/self/fd/3 ]; then . /proc/self/fd/3; exec 3<&-; fi
  # Nobody is there to answer.
  export GIT_TERMINAL_PROMPT="${GIT_TERMINAL_PROMPT-0}" GCM_INTERACTIVE="${GCM_INTERACTIVE-never}" \
    DEBIAN_FRONTEND="${DEBIAN_FRONTEND-noninteractive}" PIP_NO_INPUT="${PIP_NO_INPUT-1}" DTC_ATTEMPT="$1"
  case $4 in
    '') ;;
    -*) false ;;
    */*) [ -f "$4" ] && [ -x "$4" ] ;;
    *) command -v "$4" >/dev/null 2>&1 ;;
  esac || { echo "interpreter $4: not there, or not a program" >&2; exit 127; }
  # From here on something of the user's may have run. What the runner looks at, no script can take away.
  { echo "$3" >"$2/begun" && echo begun >&5; } || exit 126
  exec 5>&-
  shift 4
  exec "$@"
}

# `resume STATE PLACED WORKDIR ATTEMPT DIR BEGIN WANTED PROGRAM...`: the same in the surroundings that were saved.
if [ "$1" = resume ]; then
  # What is set for this command alone must not take the place of what carries over.
  [ ! -f "$6/names" ] || (
    set -- "$2" "$6" "$(command -v sh)" "$(command -v env)" -i
    # shellcheck disable=SC1090
    . "$1"
    unset IFS
    read -r DTC_NAMES <"$2/names"
    for DTC_NAME in ${DTC_NAMES#unset }; do
      eval "[ ! \"\${$DTC_NAME+x}\" ] || set -- \"\$@\" \"$DTC_NAME=\$$DTC_NAME\""
    done
    [ $# -gt 5 ] || exit 0
    exec >"$2/kept"
    set -- "$@" "$3" -c 'export -p'
    shift 3
    exec "$@"
  ) 5>&- 3<&-
  unset PATH
  # shellcheck disable=SC1090
  . "$2"
  if [ "$3" ] || ! { [ "$DTC_DIRECTORY" ] && cd "$DTC_DIRECTORY" 2>/dev/null; }; then
    [ "$3" ] || echo "directory $DTC_DIRECTORY is gone; this runs in $4" >&2
    cd "$4" || exit 126
  fi
  unset DTC_DIRECTORY
  shift 4
  become "$@"
fi

base=${0%/*} op=$1 attempt=$2 mark=$3
newline='
'
dir=$base/attempt/$attempt input=$base/input/$attempt guard=$base/guard/$attempt

say() { echo "dtc1 $attempt $*"; }

# Looks at process $1: $pid, its kernel start time (clock ticks since boot) in $started, its state in $life; fails when
# there is none. A pid alone is soon somebody else's.
start_of() {
  started='' pid='' line=''
  case $1 in self) ;; '' | *[!0-9]*) return 1 ;; esac
  { read -r line && while read -r more; do line="$line $more"; done; } 2>/dev/null <"/proc/$1/stat"
  [ "$line" ] || return 1
  pid=${line%% *}
  # shellcheck disable=SC2086 # the fields after the command name
  set -- ${line##*) }
  life=$1
  case $life in Z | X) return 1 ;; esac
  started=${20}
} 2>/dev/null

# Whether these are numbers that can be reckoned with: what is in a file may be the script's.
numbers() {
  for number in "$@"; do case $number in '' | *[!0-9]* | 0?* | ????????????????*) return 1 ;; esac; done
}

# Whether process $1 is still the one that started at $2.
lives() { [ "$2" ] && start_of "$1" && [ "$started" = "$2" ]; }

# Takes the right to decide about the attempt. Exactly one taker wins: noclobber creates or fails.
# (It would open what is no plain file, and a FIFO would hold us up.)
claim() {
  [ ! -e "$guard" ] || return 1
  set -C
  if { echo "$1" >"$guard"; } 2>/dev/null; then set +C; else set +C; return 1; fi
}

# Time since boot: as the kernel writes it, and in hundredths of a second.
now() { read -r uptime _ </proc/uptime; hundredths=$((${uptime%.*} * 100 + 1${uptime#*.} - 100)); }

# Sleeps for $1 hundredths of a second, or for a second where fractions are not known.
pause() { sleep "0.$1" 2>/dev/null || sleep 1; }

# Wakes those who wait. Opened for reading too, a FIFO neither blocks nor ends us when its reader is gone.
wake() {
  for fifo in "$base/wait/$attempt".*; do
    [ -p "$fifo" ] && echo ended 1<>"$fifo"
  done 2>/dev/null
}

# The size of the file $1, into $size.
size_of() { size=0; if [ -f "$1" ] && [ -s "$1" ]; then size=$(($(wc -c <"$1"))); fi; }

# Whether the output $1 is there as it was counted, into $size and $after.
counted() {
  size='' after=''
  [ ! -f "$dir/$1.size" ] || read -r size after <"$dir/$1.size"
  numbers "$size" "$after" && [ -f "$dir/$1" ] || return 1
  expected=$size
  size_of "$dir/$1"
  [ "$size" -ge "$expected" ]
}

# --- running ---------------------------------------------------------------------------------------------------------

# Written over what was put there at the start, so that a full disk cannot keep the outcome back; then shown at once.
finish() {
  for place in "$dir/exit" "$dir/exit.new"; do
    if [ -h "$place" ] || { [ -e "$place" ] && [ ! -f "$place" ]; }; then rm -rf "$place"; fi
  done
  echo "$1 $2 $3 $4" 1<>"$dir/exit.new" && mv -f "$dir/exit.new" "$dir/exit"
  wake
}

# In the child, whose exit code is the command's.
launch() {
  start_of self && echo "$pid $started" >"$dir/child"
  # A kill that came before the child was to be found.
  [ ! -e "$dir/killed" ] || exit 143
  umask "$mask"
  exec 3<&- 4<&- 6<&- 7<&- 8<&- 9<&-
  state=$base/persist/state
  case $form in *,persist*) ;; *) state= ;; esac
  if [ "$1" ]; then wanted=$1; else wanted='' login=-l; fi
  # Where a state is resumed the profile has been read; it would undo what was changed since.
  [ "$state" ] && [ -s "$state" ] && login=
  [ "$wanted" ] || set -- "$shell" ${login:+"$login"}
  if [ "$state" ]; then
    # What a command that was ended may have left.
    mkdir -p "$base/persist" && rm -f "$state".*
    set -- "$@" "$base/persist-${0##*/runner-}" "$dir" "$state" "$sh" "$0" "$PATH"
  else
    set -- "$@" "$dir/script"
  fi
  placed=
  case $form in *,placed*) placed=yes ;; esac
  if ! { [ -d "$workdir" ] && cd "$workdir"; } 2>/dev/null && { [ "$placed" ] || ! [ "$state" ] || ! [ -s "$state" ]; }; then
    echo "working directory $workdir: not there, or not a directory that can be entered" >&2
    exit 126
  fi
  if [ -f "$dir/stdin" ]; then exec <"$dir/stdin"; fi
  if [ -f "$dir/env" ]; then exec 3<"$dir/env"; fi
  # Secrets are on no disk while the script runs.
  if [ -f "$dir/stdin" ] || [ -f "$dir/env" ]; then rm -f "$dir/stdin" "$dir/env"; fi
  if [ "$state" ] && [ -s "$state" ]; then
    exec ${setsid:+"$setsid"} env -i PATH="$PATH" "$sh" "$0" resume "$state" "$placed" "$workdir" "$attempt" "$dir" "$begin" "$wanted" "$@"
  fi
  become "$attempt" "$dir" "$begin" "$wanted" ${setsid:+"$setsid"} "$@"
}

# Takes $1 lines of standard input into $taken.
take_lines() {
  taken='' left=$1
  while [ "$left" -gt 0 ]; do
    LC_ALL=C IFS= read -r line || return 1
    taken=$taken$line$newline left=$((left - 1))
  done
}

# Takes what is on standard input into $names, $exports and $script. Fails where not all of it came: a text may be cut.
# By the shell itself, for each program that is not started is a millisecond.
receive() {
  lines=${form#inline=} lines=${lines%%,*} names=''
  case $form in *,persist*) read -r names || return 1 ;; esac
  take_lines "${lines%/*}" || return 1
  exports=$taken
  take_lines "${lines#*/}" || return 1
  script=$taken
  IFS= read -r line && [ "$line" = "$attempt" ]
}

# Opens descriptor 5 to write and 6 to read something that has no name, which outlives what a script removes: a pipe, or
# a file that was removed, as the shell has its here-documents.
unnamed() {
  # Where `exec` fails the shell ends, so it is tried before.
  { :; } 6<<END || return 1
line
END
  # An empty one would be /dev/null to some shells.
  exec 6<<END
line
END
  read -r word <&6 && printf '' >>/proc/self/fd/6 && exec 5>>/proc/self/fd/6
}

# Makes the attempt's directory with what it is to run.
put() {
  case $form in
    # It may have been readable by others until now.
    uploaded*) mv "$input" "$dir" && chmod -R go= "$dir" && [ -f "$dir/script" ] ;;
    *)
      mkdir "$dir" && printf %s "$script" >"$dir/script" &&
        { [ ! "$exports" ] || printf %s "$exports" >"$dir/env"; } &&
        { [ ! "$names" ] || printf '%s\n' "$names" >"$dir/names"; }
      ;;
  esac
}

run() {
  form=$4 workdir=$5
  shift 5
  # shellcheck disable=SC1090
  . "$base/keeping-${0##*/runner-}"
  [ -e "$base/session/$mark" ] || { say lost; exit 98; } >&2
  [ ! -e "$guard" ] || { say duplicate; exit 97; } >&2
  mask=$(umask)
  umask 077
  # What was not put there, or not all of it, may still come.
  case $form in
    uploaded*) [ -f "$input/script" ] ;;
    *) receive ;;
  esac || { [ -e "$guard" ] && { say duplicate; exit 97; }; say missing; exit 98; } >&2
  start_of $$
  now
  begin=$uptime
  claim "$$ $started $begin" || { say duplicate; exit 97; } >&2
  # Deleting the session sends TERM to this group. Handled, not ignored: the script gets the defaults back.
  trap : HUP INT TERM PIPE
  exec 4>&2 2>/dev/null
  if ! { [ ! -e "$dir" ] && put && printf '%120s\n' '' >"$dir/exit.new" && mkfifo "$dir/out" "$dir/err" && unnamed; }; then
    rm -rf "$input" "$dir/script" "$dir/env" "$dir/stdin"
    mkdir -p "$dir"
    echo "the files of the attempt cannot be made in $base" >"$dir/stderr"
    finish 126 "$begin" "$begin" nostart
    exit 98
  fi
  setsid=setsid shell=bash sh=sh
  command -v setsid >/dev/null || setsid=
  command -v bash >/dev/null || shell='sh'
  # The job may have a PATH of its own, and in its directory a PATH that is not absolute leads elsewhere.
  resolve=''
  if [ -f "$dir/env" ]; then resolve=yes; fi
  case $form:$PATH: in *,persist* | *::* | *:[!/]*) resolve=yes ;; esac
  if [ "$resolve" ]; then
    sh=$(command -v sh) shell=$(command -v $shell) setsid=${setsid:+$(command -v setsid)}
  fi
  # A FIFO and a reader, not a plain file: `echo x >/dev/stderr` would truncate a file.
  keep stdout 3<"$dir/out" 4>&- 5>&- 6<&- </dev/null >/dev/null 2>&1 &
  # shellcheck disable=SC2034 # looked at by keeping.sh
  out_keeper=$!
  keep stderr 3<"$dir/err" 4>&- 5>&- 6<&- </dev/null >/dev/null 2>&1 &
  # shellcheck disable=SC2034
  err_keeper=$!
  (launch "$@") </dev/null >"$dir/out" 2>"$dir/err"
  code=$?
  now
  # shellcheck disable=SC2034
  finished=$uptime ended=$hundredths word=''
  gather
  # Whoever holds the other end must not hold us up.
  if [ -s "$dir/begun" ]; then word=begun; else echo ended >&5; read -r word <&6; fi
  if ! [ -d "$dir" ]; then
    how=lost
    rm -f "$dir"
    mkdir -p "$dir"
  elif [ "$word" != begun ]; then
    how=nostart
    rm -rf "$dir/script" "$dir/env" "$dir/stdin"
  fi
  finish $code "$begin" "$finished" "$how"
  # From here on nobody waits.
  [ "$op" = run ] || exit $code
  reap
  case $form in *,secret*) ;; *) show ;; esac
  exit $code
}

# Daytona's session keeps the standard input of a command open by a subshell of the session's shell with a `sleep` in
# it, and leaves it behind. The sleep alone would be made again. Where the kernel lists no children nothing is done.
reap() {
  case $PPID in '' | *[!0-9]* | 0 | 1) return ;; esac
  # There is no newline at the end of a list of children.
  siblings=''
  read -r siblings <"/proc/$PPID/task/$PPID/children"
  read -r shell_name <"/proc/$PPID/comm"
  for sibling in $siblings; do
    case $sibling in *[!0-9]* | 0 | 1 | "$$") continue ;; esac
    children='' name=''
    read -r name <"/proc/$sibling/comm"
    [ "$name" = "$shell_name" ] || continue
    read -r children <"/proc/$sibling/task/$sibling/children"
    for child in $children; do
      case $child in *[!0-9]* | 0 | 1 | "$$") continue ;; esac
      name=''
      read -r name <"/proc/$child/comm" && [ "$name" = sleep ] && kill "$sibling" && kill -KILL "$child"
    done
  done
} 2>/dev/null

# So that whoever looks with Daytona's own tools sees what came out, apart.
show() {
  for name in stdout stderr; do
    from=$dir/$name
    [ ! -s "$from.tail" ] || from=$from.tail
    [ -s "$from" ] || continue
    if [ $name = stdout ]; then tail -c $SHOWN_BYTES "$from"; else tail -c $SHOWN_BYTES "$from" >&4; fi
  done
} 2>/dev/null

# In a process and a session of its own, so that it outlives the call that it came with.
start() {
  if [ -e "$guard" ]; then return; fi
  shift
  # `&` would take our standard input away; this is the way to hand it on.
  exec 3<&0
  set -- sh "$0" detached "$@"
  command -v setsid >/dev/null 2>&1 && set -- setsid "$@"
  "$@" <&3 3<&- >/dev/null 2>&1 &
}

case $op in
  session)
    mark=$attempt
    start_of "$PPID"
    echo "${pid:-none} $started" >"$base/session/$mark" && say ready
    ;;
  mark) echo none >"$base/session/$attempt" && say ready ;;
  check) [ -e "$base/session/$attempt" ] && say ready ;;
  run | detached) run "$@" ;;
  start) start "$@" ;;
  file)
    # In a group of its own, so that all that it starts can be ended with it.
    set -- sh "$0" filing "$attempt"
    command -v setsid >/dev/null 2>&1 && set -- setsid "$@"
    "$@"
    exit
    ;;
  filing | unfile)
    # shellcheck disable=SC1090
    . "$base/filing-${0##*/runner-}"
    if [ "$op" = filing ]; then file; else alone; fi
    ;;
  # In another file, which a shell that only runs need not read.
  wait | fence | kill | sweep)
    # shellcheck disable=SC1090
    . "$base/asking-${0##*/runner-}"
    ;;
esac
