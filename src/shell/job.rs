//! What an attempt is to run, and in which surroundings.

use std::fmt::{self, Write as _};

/// Longest single `NAME=VALUE` or argument that Linux hands to a program, in bytes (`MAX_ARG_STRLEN`, its final NUL
/// apart).
const LONGEST_STRING: usize = 131_071;
/// Most bytes of environment that a job may bring: well below what Linux takes (a quarter of the stack limit, 2 MiB as
/// a rule), for the sandbox has an environment of its own.
const LARGEST_ENVIRONMENT: usize = 1024 * 1024;

/// What an attempt is to run.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Job {
    /// The script, byte for byte.
    pub script: Vec<u8>,
    /// Program and arguments that read the script; empty: the login shell (`bash -l` if there is one, else `sh -l`).
    pub interpreter: Vec<String>,
    /// Directory to run in; absolute, or relative to the sandbox's work directory, which is the default.
    pub working_dir: Option<String>,
    /// Environment variables, set before the login shell reads its profile. Names are identifiers.
    pub env: Vec<(String, Vec<u8>)>,
    /// Standard input; without it the script reads end of file at once.
    pub stdin: Option<Vec<u8>>,
    /// Whether the working directory and the exported variables carry over from and to other such jobs.
    pub persist: bool,
    /// Whether any of it is secret: then nothing of it travels in a text, which Daytona lists, and nothing of the
    /// output is copied to the session's log.
    pub secret: bool,
}

impl fmt::Debug for Job {
    /// Without anything that could be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("script", &self.script.len()).field("secret", &self.secret).finish_non_exhaustive()
    }
}

/// Why a job cannot be run anywhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// No shell reads NUL as what it is.
    #[error("the script contains a NUL byte; take it out")]
    ScriptWithNul,
    /// The environment ends its strings with NUL.
    #[error("the value of environment variable {0} contains a NUL byte; pass it as stdin or in a file")]
    ValueWithNul(String),
    /// Linux refuses to start a program with it.
    #[error(
        "environment variable {0} is longer than {LONGEST_STRING} bytes, which no program can be started with; pass \
         it as stdin or in a file"
    )]
    ValueTooLong(String),
    /// Likewise.
    #[error(
        "argument {0} of the command is longer than {LONGEST_STRING} bytes, which no program can be started with; pass \
         it as stdin or in a file"
    )]
    ArgumentTooLong(usize),
    /// Likewise.
    #[error("the environment is larger than {LARGEST_ENVIRONMENT} bytes; pass the large values as stdin or in a file")]
    EnvironmentTooLarge,
}

impl Job {
    /// A script that becomes the program with these arguments, each of them as it is.
    ///
    /// Not every shell's `exec` knows `--`, so a program whose name looks like an option is started by `env`.
    ///
    /// # Errors
    /// [`Unfit::ArgumentTooLong`] with the number of the first word that no program can be given; the program's own
    /// name is number 0.
    pub fn argv(words: &[String]) -> Result<Vec<u8>, Unfit> {
        if let Some(number) = words.iter().position(|word| word.len() > LONGEST_STRING) {
            return Err(Unfit::ArgumentTooLong(number));
        }
        let mut script = "exec".to_owned();
        if words.first().is_some_and(|program| program.starts_with('-')) {
            script.push_str(" env --");
        }
        for word in words {
            let _ = write!(script, " {}", quote(word));
        }
        script.push('\n');
        Ok(script.into_bytes())
    }

    /// Whether a sandbox could run it at all.
    ///
    /// # Errors
    /// See [`Unfit`].
    pub fn check(&self) -> Result<(), Unfit> {
        if self.script.contains(&0) {
            return Err(Unfit::ScriptWithNul);
        }
        let mut all = 0;
        for (name, value) in &self.env {
            if value.contains(&0) {
                return Err(Unfit::ValueWithNul(name.clone()));
            }
            let length = name.len() + 1 + value.len();
            if length > LONGEST_STRING {
                return Err(Unfit::ValueTooLong(name.clone()));
            }
            all += length + 1;
        }
        if all > LARGEST_ENVIRONMENT { Err(Unfit::EnvironmentTooLarge) } else { Ok(()) }
    }
}

/// A file that has to be in the sandbox before the attempt's text is sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Upload {
    /// Absolute path.
    pub path: String,
    /// Content.
    pub content: Vec<u8>,
}

impl fmt::Debug for Upload {
    /// Without the content, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upload({}, {} bytes)", self.path, self.content.len())
    }
}

/// How much of each output an answer brings back, in bytes: all of it when it is no longer than both together, else
/// so much of its beginning and of its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetch {
    /// Of the beginning.
    pub head: usize,
    /// Of the end.
    pub tail: usize,
}

/// One shell word, whatever is in it.
pub(super) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_sandbox_can_run_is_told_beforehand() {
        let job = |env: &[(&str, Vec<u8>)]| Job {
            env: env.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            ..Job::default()
        };
        assert_eq!(job(&[("A", vec![b'x'; 131_069])]).check(), Ok(()));
        assert_eq!(job(&[("A", vec![b'x'; 131_070])]).check(), Err(Unfit::ValueTooLong("A".to_owned())));
        assert_eq!(job(&[("A", vec![0])]).check(), Err(Unfit::ValueWithNul("A".to_owned())));
        let many: Vec<(String, Vec<u8>)> = (0..9).map(|n| (format!("V{n}"), vec![b'x'; 120_000])).collect();
        assert_eq!(Job { env: many, ..Job::default() }.check(), Err(Unfit::EnvironmentTooLarge));
        assert_eq!(Job { script: b"echo \0".to_vec(), ..Job::default() }.check(), Err(Unfit::ScriptWithNul));
    }

    #[test]
    fn a_job_shows_nothing_secret() {
        let job = Job {
            env: vec![("A".to_owned(), b"hunter2".to_vec())],
            stdin: Some(b"hunter2".to_vec()),
            ..Job::default()
        };
        let upload = Upload { path: "/p".to_owned(), content: b"hunter2".to_vec() };
        assert_eq!(format!("{job:?} {upload:?}"), "Job { script: 0, secret: false, .. } Upload(/p, 7 bytes)");
    }

    #[test]
    fn an_argument_is_never_split() {
        let words = ["printf", "%s\n", "a b", "it's", "$HOME `x` \"y\" *", ""].map(str::to_owned);
        assert_eq!(Job::argv(&words).unwrap(), b"exec 'printf' '%s\n' 'a b' 'it'\\''s' '$HOME `x` \"y\" *' ''\n");
        let longest = ["echo".to_owned(), "x".repeat(131_071)];
        assert_eq!(Job::argv(&longest).unwrap().len(), 131_071 + 15);
        let too_long = ["echo".to_owned(), "\u{1f600}".repeat(32_768)];
        assert_eq!(Job::argv(&too_long), Err(Unfit::ArgumentTooLong(1)));
    }
}
