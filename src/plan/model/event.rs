//! What may happen, in which world, and how it is drawn.

use proptest::{prelude::*, sample::select};

use crate::{
    api::{ReclaimPolicy, SuspendPolicy},
    daytona::Class,
};

/// How many commands there are.
pub(super) const COMMANDS: usize = 2;

/// Phases of one reconcile that goes to its end: three for each of its steps.
pub(super) const WHOLE: u8 = 36;

/// Which sandbox the lease is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    Own,
    Adopted,
    Reused,
}

/// How a script's processes take signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    /// They end with their session, and by a kill.
    Plain,
    /// They outlive their session.
    Stubborn,
    /// Not even a kill ends them: they are another user's.
    Unkillable,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    pub(super) code: i32,
    /// With which code it ends when it is ended.
    pub(super) when_ended: i32,
    pub(super) nature: Nature,
    pub(super) deadline: Option<i32>,
}

/// What does not change in the course of a run.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub(super) struct Scenario {
    pub(super) sessions: bool,
    pub(super) parallel: i32,
    pub(super) reclaim: ReclaimPolicy,
    pub(super) wants: Wants,
    /// The sandbox's shell is one that takes commands when it is dead.
    pub(super) deaf: bool,
    /// The commands' inputs are secret, and so uploaded.
    pub(super) secret: bool,
    /// How long the lease lasts.
    pub(super) lasts: Option<i64>,
    /// A stranger's sandbox has the name already.
    pub(super) taken: bool,
    /// What goes wrong most often.
    pub(super) usual: Fault,
    /// Whether a lease that is suspended in the end is resumed before it is deleted.
    pub(super) resumes: bool,
    /// How many of [`CALM`] come before all that is drawn.
    pub(super) calm: usize,
    pub(super) scripts: [Script; COMMANDS],
}

/// What goes wrong with a call to Daytona, or with a write to Kubernetes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The controller dies before it is made.
    DiesBefore,
    /// The controller dies when it has taken effect.
    DiesAfter,
    /// The controller dies while it is under way.
    DiesLate,
    /// It takes effect, its answer is lost.
    Lost,
    /// It takes effect later; nobody waits for the answer any more.
    Late,
    /// It takes effect, and its answer makes no sense.
    Garbled,
    /// It is answered so, and has no effect. [`Class::Gone`] is a lie.
    Refused(Class),
    /// What goes wrong most often in this world.
    Usual,
}

/// A fault of the n-th call from now on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trouble {
    pub(super) at: u8,
    /// Writes to Kubernetes are calls, too.
    pub(super) writes: bool,
    pub(super) fault: Fault,
}

/// The key that the lease's Secret holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Right,
    /// Of another organisation.
    Foreign,
    /// There is none.
    Missing,
    /// The Kubernetes API does not tell.
    Untold,
}

/// What somebody else does to the lease's sandbox.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deed {
    Stop,
    Pause,
    Start,
    Delete,
    Fail {
        recoverable: bool,
        /// When it is recovered it has the files of an earlier day.
        forgets: bool,
    },
    /// A deletion that is under way fails.
    FailDeletion,
    /// Its files are saved, as they are now.
    Save,
    /// Our files are removed.
    Wipe,
    /// The shells of all sessions are killed.
    KillShells,
    /// Our label is taken off, or put back.
    Label(bool),
    /// Daytona deletes it for its age, if it may.
    Age,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The lease's reconcile gets on by so many phases. Not fresh: the watch is behind.
    Lease {
        fresh: bool,
        phases: u8,
        trouble: Option<Trouble>,
    },
    /// A command's.
    Command {
        which: usize,
        fresh: bool,
        phases: u8,
        trouble: Option<Trouble>,
    },
    /// The call that waits for a command's end comes back.
    Wait {
        which: usize,
        trouble: Option<Trouble>,
    },
    /// The text that starts a command is late, and somebody has looked for what it started before it comes.
    Delay(usize),
    /// The controller is started anew.
    Restart,
    /// Calls that were late arrive.
    Arrive,
    /// So many seconds pass.
    Pass(i64),
    /// Daytona gets on with what it is at.
    Settle,
    /// A script ends by itself.
    End(usize),
    Do(Deed),
    DeleteLease,
    /// Another of the same name, when the first is gone.
    CreateLease,
    Suspend(bool, SuspendPolicy),
    Reclaim(ReclaimPolicy),
    /// Somebody writes to the lease.
    TouchLease,
    TouchCommand(usize),
    Cancel(usize),
    DeleteCommand(usize),
    HoldKey(Key),
    /// The commands' Secret is of this version; `None`: it is not there.
    HoldSecret(Option<u8>),
}

/// How it begins when nothing goes wrong, so that more is drawn from where something runs.
pub(super) const CALM: [Event; 7] = [
    LOOK,
    Event::Settle,
    LOOK,
    Event::Command { which: 0, fresh: true, phases: WHOLE, trouble: None },
    Event::Command { which: 1, fresh: true, phases: WHOLE, trouble: None },
    Event::Wait { which: 0, trouble: None },
    LOOK,
];

const LOOK: Event = Event::Lease { fresh: true, phases: WHOLE, trouble: None };

pub(super) fn policy() -> impl Strategy<Value = ReclaimPolicy> {
    use ReclaimPolicy::{Archive, Delete, Retain, Stop};
    prop_oneof![3 => Just(Delete), 2 => Just(Stop), 1 => Just(Archive), 2 => Just(Retain)]
}

fn script() -> impl Strategy<Value = Script> {
    let nature = prop_oneof![8 => Just(Nature::Plain), 2 => Just(Nature::Stubborn), 1 => Just(Nature::Unkillable)];
    let deadline = prop_oneof![8 => Just(None), 1 => Just(Some(40))];
    (select(vec![0, 3, 143]), select(vec![143, 137, 0]), nature, deadline)
        .prop_map(|(code, when_ended, nature, deadline)| Script { code, when_ended, nature, deadline })
}

pub(super) fn scenario(sessions: bool) -> impl Strategy<Value = Scenario> {
    let wants = prop_oneof![4 => Just(Wants::Own), 1 => Just(Wants::Adopted), 1 => Just(Wants::Reused)];
    let lasts = prop_oneof![6 => Just(None), 1 => Just(Some(120))];
    let seldom = prop::bool::weighted(0.04);
    let course = (fault(), any::<bool>(), prop_oneof![1 => Just(0), 2 => 0..=CALM.len()]);
    let secret = prop::bool::weighted(0.3);
    (1..=2, policy(), wants, any::<bool>(), secret, lasts, seldom, course, [script(), script()]).prop_map(
        move |(parallel, reclaim, wants, deaf, secret, lasts, taken, (usual, resumes, calm), scripts)| {
            let parallel = if sessions { 1 } else { parallel };
            // Refused by the schema.
            let adopts = wants == Wants::Adopted && reclaim == ReclaimPolicy::Delete;
            let reclaim = if adopts { ReclaimPolicy::Retain } else { reclaim };
            Scenario { sessions, parallel, reclaim, wants, deaf, secret, lasts, taken, usual, resumes, calm, scripts }
        },
    )
}

fn fault() -> impl Strategy<Value = Fault> {
    use Class::{Conflict, Gone, NotMade, NotYet, Refused, Throttled, Unauthorized, Unavailable, Unclear};
    let classes = vec![
        Conflict,
        Gone,
        NotMade,
        NotYet,
        Refused,
        Throttled(std::time::Duration::from_secs(5)),
        Unauthorized,
        Unavailable,
        Unclear,
    ];
    prop_oneof![
        1 => Just(Fault::DiesBefore),
        1 => Just(Fault::DiesAfter),
        1 => Just(Fault::DiesLate),
        2 => Just(Fault::Lost),
        2 => Just(Fault::Late),
        1 => Just(Fault::Garbled),
        4 => select(classes).prop_map(Fault::Refused),
    ]
}

fn trouble() -> impl Strategy<Value = Option<Trouble>> {
    let fault = prop_oneof![1 => Just(Fault::Usual), 1 => fault()];
    let at = prop_oneof![2 => Just(0), 2 => 0..3_u8, 1 => 0..8_u8];
    let trouble = (at, any::<bool>(), fault).prop_map(|(at, writes, fault)| Trouble { at, writes, fault });
    prop_oneof![1 => Just(None), 1 => trouble.prop_map(Some)]
}

/// A reconcile goes to its end, as a rule.
fn phases() -> impl Strategy<Value = u8> {
    prop_oneof![3 => Just(WHOLE), 1 => 1..6_u8]
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        3 => Just(Deed::Stop),
        2 => Just(Deed::Pause),
        2 => Just(Deed::Start),
        1 => Just(Deed::Delete),
        2 => any::<(bool, bool)>().prop_map(|(recoverable, forgets)| Deed::Fail { recoverable, forgets }),
        1 => Just(Deed::FailDeletion),
        1 => Just(Deed::Save),
        2 => Just(Deed::Wipe),
        2 => Just(Deed::KillShells),
        1 => any::<bool>().prop_map(Deed::Label),
        1 => Just(Deed::Age),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let which = || 0..COMMANDS;
    let fresh = || prop::bool::weighted(0.8);
    let suspend = select(vec![SuspendPolicy::Drain, SuspendPolicy::Cancel]);
    let key =
        prop_oneof![3 => Just(Key::Right), 1 => Just(Key::Foreign), 1 => Just(Key::Missing), 1 => Just(Key::Untold)];
    let secret = prop_oneof![Just(None), (1..3_u8).prop_map(Some)];
    prop_oneof![
        18 => (fresh(), phases(), trouble())
            .prop_map(|(fresh, phases, trouble)| Event::Lease { fresh, phases, trouble }),
        18 => (which(), fresh(), phases(), trouble())
            .prop_map(|(which, fresh, phases, trouble)| Event::Command { which, fresh, phases, trouble }),
        9 => (which(), trouble()).prop_map(|(which, trouble)| Event::Wait { which, trouble }),
        3 => which().prop_map(Event::Delay),
        2 => Just(Event::Restart),
        3 => Just(Event::Arrive),
        6 => select(vec![1, 5, 10, 31, 61]).prop_map(Event::Pass),
        10 => Just(Event::Settle),
        5 => which().prop_map(Event::End),
        6 => deed().prop_map(Event::Do),
        1 => Just(Event::DeleteLease),
        1 => Just(Event::CreateLease),
        2 => (any::<bool>(), suspend).prop_map(|(suspend, policy)| Event::Suspend(suspend, policy)),
        1 => policy().prop_map(Event::Reclaim),
        1 => Just(Event::TouchLease),
        1 => which().prop_map(Event::TouchCommand),
        1 => which().prop_map(Event::Cancel),
        1 => which().prop_map(Event::DeleteCommand),
        1 => key.prop_map(Event::HoldKey),
        1 => secret.prop_map(Event::HoldSecret),
    ]
}

pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(event(), 0..70)
}
