# The part of runner.sh that keeps what a script writes. Read by runner.sh, whose functions and variables it uses. POSIX sh.
# shellcheck disable=SC2154,SC2034 # variables of runner.sh

KEPT_BYTES=67108864 # of each output, its beginning: on disk
TAIL_BYTES=1048576  # of what comes after that, the end: in memory until the output is closed

# Runs a program that takes descriptor 3 into the file $kept, where it can be told to stop.
take() {
  "$@" <&3 2>"$kept.said" &
  taker=$! since=''
  start_of $taker && since=$started && echo "$pid $started" >"$kept.taker"
  wait $taker
  taken=$?
  # zsh comes back, too, when it was stopped, and then knows no better: dd says something unless it was killed.
  while lives $taker "$since"; do
    kill -CONT $taker
    wait $taker
    pause 01
    [ -s "$kept.said" ]
    taken=$?
  done
  return $taken
}
to_disk() { export LC_ALL=C; exec dd bs=65536 count="$1" >>"$kept"; }
onward() { exec cat >"$kept.more"; }

# Keeps what comes through descriptor 3, until nobody holds the other end any more: dd writes at once, reads no further
# than it is told, and counts. It never stops reading: a writer must neither wait nor be ended.
# The last line written is "BYTES-ON-DISK BYTES-AFTER-THOSE", "-" for unknown.
keep() {
  kept=$dir/$1 size=0 after=0 over=''
  trap '' HUP INT TERM
  : >"$kept"
  while [ "$size" -lt $KEPT_BYTES ]; do
    blocks=$(((KEPT_BYTES - size) / 65536 + 1)) records='' counted=''
    # It fails when the disk is full, or when it was told to stop.
    take to_disk $blocks || { size_of "$kept"; [ -e "$dir/drained" ] || after=-; break; }
    [ -f "$kept.said" ] && while read -r word _; do
      case $word in
        *[!0-9+]* | *+*+* | +* | *+ | 0[0-9]* | *+0[0-9]* | ????????????????*) ;;
        *+*) records=${records:-$((${word%+*} + ${word#*+}))} ;;
        '') ;;
        *) counted=$word ;;
      esac
    done <"$kept.said"
    # Not every dd says how many bytes it were.
    if [ "$counted" ]; then size=$((size + counted)); else size_of "$kept"; fi
    # Where it is known that it came to the end, nobody holds the other one, and nobody can get hold of it.
    [ "${records:-0}" -ge $blocks ] || { over=$records; break; }
  done
  if [ "$size" -ge $KEPT_BYTES ] && [ "$after" = 0 ] && [ ! -e "$dir/drained" ]; then
    mkfifo "$kept.more" "$kept.counted"
    wc -c <"$kept.counted" >"$kept.after" &
    tee "$kept.counted" <"$kept.more" | tail -c $TAIL_BYTES >"$kept.tail" &
    take onward
    wait
    read -r after _ <"$kept.after" || after=-
  fi
  [ "$after" != - ] || [ -e "$dir/drained" ] || cat <&3 >/dev/null
  if [ -e "$kept.size" ] && [ ! -f "$kept.size" ]; then rm -rf "$kept.size"; fi
  echo "$size $after" >"$kept.size"
  [ ! "$over" ] || exit
  # A background process may go on writing; it must not notice that nobody looks, and not fill the disk.
  exec cat <&3 >/dev/null
} 2>/dev/null

# Whether both outputs are complete.
kept_both() {
  [ -s "$dir/stdout.size" ] && [ -s "$dir/stderr.size" ]
}

# Whether nobody is there any more who would complete them.
kept_or_gone() {
  { [ -s "$dir/stdout.size" ] || ! start_of "$out_keeper"; } && { [ -s "$dir/stderr.size" ] || ! start_of "$err_keeper"; }
}

# Whether some process has the writing end of output $1 open.
held() {
  for opened in /proc/[0-9]*/fd/*; do
    # shellcheck disable=SC3013 # known to all four; without it this takes its longest
    [ "$opened" -ef "$dir/$1" ] || continue
    while read -r name value; do
      case $name$value in flags:*[12]) return 0 ;; esac
    done <"${opened%/fd/*}/fdinfo/${opened##*/}"
  done
  return 1
}

# Looks at what takes the output $1.
taker_of() {
  taker='' since=''
  [ ! -f "$dir/$1.taker" ] || read -r taker since <"$dir/$1.taker"
  lives "$taker" "$since"
}

# Whether it has it all and sleeps.
idle() { [ -s "$dir/$1.size" ] || { taker_of "$1" && [ "$life" = S ]; }; }

# Has those go on that the script has stopped.
continue_all() {
  for name in stdout stderr; do taker_of $name && [ "$life" = T ] && kill -CONT "$taker"; done
  # One that has said its size may be gone, and its number another process's.
  [ -s "$dir/stdout.size" ] || { start_of "$out_keeper" && [ "$life" = T ] && kill -CONT "$out_keeper"; }
  [ -s "$dir/stderr.size" ] || { start_of "$err_keeper" && [ "$life" = T ] && kill -CONT "$err_keeper"; }
}

# What the script left in the background may hold its outputs open for ever: then what is there by now is the result.
gather() {
  how=full
  # Each look costs a program, which where much is going on keeps the keepers from their work: so ever fewer.
  set -- 003 006 01 02
  until kept_both; do
    sleep "0.$1" 2>/dev/null || sleep 1
    [ $# = 1 ] || { shift; continue; }
    ! kept_or_gone || break
    now
    # Not before it is seen that somebody holds them: a machine may be slow. And not for ever.
    [ $((hundredths - ended)) -ge 25 ] || continue
    continue_all
    pause 05
    [ $((hundredths - ended)) -ge 1000 ] || {
      held out || held err || continue
      { idle stdout && idle stderr; } || [ $((hundredths - ended)) -ge 200 ] || continue
    }
    how=background
    echo >"$dir/drained"
    for name in stdout stderr; do
      [ -s "$dir/$name.size" ] || { taker_of $name && kill -KILL "$taker"; }
    done
    now
    until_then=$((hundredths + 100))
    until kept_or_gone || { now && [ "$hundredths" -ge $until_then ]; }; do pause 01; done
    break
  done
  # Where it could not be written nobody knows either.
  { counted stdout && counted stderr; } || how=lost
} 2>/dev/null
