//! Rule files that are read again when they change.

use std::{
    collections::BTreeSet,
    fmt, fs, io,
    path::{self, Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use http::Request;
use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};

use super::{Registry, Rules};
use crate::limiter::Limiter;

/// How long nothing must have happened before a file is read: who saves it may not be done yet.
const QUIET: Duration = Duration::from_millis(50);
/// How many times that is waited for.
const QUIET_WAITS: usize = 20;
/// How often it is looked at without being told: some file systems tell nothing.
const LOOKS_AGAIN: Duration = Duration::from_secs(30);
/// As many links as Linux follows.
const MOST_LINKS: usize = 40;

/// Reads a rule file again when it changes, until it is dropped. [`Rules::watch`] returns it.
#[must_use = "dropped, it ends"]
pub struct Watch {
    path: PathBuf,
    told: mpsc::Sender<Told>,
    read: Arc<dyn Fn(When) + Send + Sync>,
    ended: Arc<Mutex<bool>>,
}

/// What the thread is told.
enum Told {
    Changed,
    End,
}

/// When rules are put in force.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// If the file says something else than the last time.
    Changed,
    Always,
}

impl Rules {
    /// Reads the file that these rules came from again whenever it changes, and puts what it says in force in
    /// `limiter`, as [`reload`](Limiter::reload) does. A file with problems changes nothing; it is logged and
    /// [counted](Limiter::reloads).
    ///
    /// What the file says is compared, so it does not matter how it came there: written in place, renamed over the old
    /// one as many editors do, removed and made anew, or behind links of which one was changed, as in Kubernetes. It is
    /// read when nothing has happened for 50 ms, and looked at every 30 s in any case, since network file systems tell
    /// nothing. A file that is renamed into its place is never read half written.
    ///
    /// A thread does this, until the returned value is dropped. Nothing is put in force after that.
    ///
    /// # Errors
    ///
    /// Where these rules were not read [from a file](Self::from_path), and where the system does not let it be watched.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Limiter, config::{Registry, Rules}};
    ///
    /// # let directory = std::env::temp_dir().join(format!("tollgate-watch-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory)?;
    /// # let path = directory.join("rules.toml");
    /// # std::fs::write(&path, "policies = []")?;
    /// let registry = Registry::<()>::new();
    /// let rules = Rules::from_path(&path)?;
    /// let limiter = Limiter::new(rules.build(&registry)?);
    /// let watch = rules.watch(&limiter, registry)?;
    ///
    /// std::fs::write(&path, "[[policies]]\nid = 'all'\nkey = 'global'\nlimit = '9/s'\n")?;
    /// while limiter.reloads().reloaded == 0 {
    ///     std::thread::yield_now();
    /// }
    /// assert!(limiter.stats("all").is_ok());
    /// drop(watch);
    /// # std::fs::remove_dir_all(directory)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch<B: 'static>(&self, limiter: &Limiter<Request<B>>, registry: Registry<B>) -> io::Result<Watch> {
        let Some(path) = &self.source.path else {
            let text = "these rules were not read from a file, so there is none to watch; use Rules::from_path";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let path = path::absolute(path)?;
        let ended = Arc::new(Mutex::new(false));
        let reading = Reading {
            path: path.clone(),
            limiter: limiter.clone(),
            registry,
            tried: Mutex::new(self.source.text.clone()),
            ended: Arc::clone(&ended),
        };
        let read: Arc<dyn Fn(When) + Send + Sync> = Arc::new(move |when| reading.read(when));
        let (told, tells) = mpsc::channel();
        let mut follower = Follower::new(path.clone(), told.clone())?;
        follower.follow().map_err(cannot_watch)?;
        let reads = Arc::clone(&read);
        thread::Builder::new().name("tollgate-watch".into()).spawn(move || {
            // It may have changed between the first reading and here.
            reads(When::Changed);
            while waits(&tells) {
                // What changes from here on is told of again.
                let _missing = follower.follow();
                reads(When::Changed);
            }
        })?;
        Ok(Watch { path, told, read, ended })
    }
}

impl Watch {
    /// Reads the file now and puts its rules in force, whether or not it has changed. What came of it is logged and
    /// [counted](Limiter::reloads). It blocks for as long as reading the file takes: for a signal handler's task, say.
    pub fn reload(&self) {
        (self.read)(When::Always);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *lock(&self.ended) = true;
        let _ended_already = self.told.send(Told::End);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("path", &self.path).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cannot_watch(error: notify::Error) -> io::Error {
    let text = "the system does not let the file be watched (on Linux, fs.inotify.max_user_watches and max_user_instances bound it)";
    io::Error::other(format!("{text}: {error}"))
}

/// Waits for a change and for the pause after it, or until it is time to look again. Returns false when all is over.
fn waits(tells: &mpsc::Receiver<Told>) -> bool {
    match tells.recv_timeout(LOOKS_AGAIN) {
        Ok(Told::Changed) => {}
        Err(mpsc::RecvTimeoutError::Timeout) => return true,
        Ok(Told::End) | Err(mpsc::RecvTimeoutError::Disconnected) => return false,
    }
    for _ in 0..QUIET_WAITS {
        thread::sleep(QUIET);
        let mut quiet = true;
        for told in tells.try_iter() {
            match told {
                Told::Changed => quiet = false,
                Told::End => return false,
            }
        }
        if quiet {
            break;
        }
    }
    true
}

/// What it takes to read a file into a limiter.
struct Reading<B> {
    path: PathBuf,
    limiter: Limiter<Request<B>>,
    registry: Registry<B>,
    /// The text that was tried last; `None` where there was none. **Locking** while the file is read, so that of two
    /// that read it the later one has the last word.
    tried: Mutex<Option<String>>,
    /// **Locking** while rules are put in force, so that none are once the watch was dropped.
    ended: Arc<Mutex<bool>>,
}

impl<B: 'static> Reading<B> {
    fn read(&self, when: When) {
        let mut tried = lock(&self.tried);
        let read = Rules::text_of(&self.path);
        let text = read.as_ref().ok().map(|(_, text)| text.trim_start_matches('\u{feff}'));
        if when == When::Changed && tried.as_deref() == text {
            return;
        }
        *tried = text.map(Into::into);
        let rules = read.and_then(|(format, text)| Rules::read(&text, format, Some(self.path.clone())));
        let rules = rules.and_then(|rules| rules.build(&self.registry));
        let ended = lock(&self.ended);
        match rules {
            _ if *ended => {}
            // It says itself what came of it.
            Ok(rules) => drop(self.limiter.reload(rules)),
            Err(problems) => self.limiter.reload_failed(&problems),
        }
    }
}

/// Has the directories watched in which something can happen that changes what is read at a path.
struct Follower {
    path: PathBuf,
    watcher: RecommendedWatcher,
    /// What is watched, and what of it matters. **Locking** while an event is looked at.
    trail: Arc<Mutex<Trail>>,
}

impl Follower {
    fn new(path: PathBuf, tells: mpsc::Sender<Told>) -> io::Result<Self> {
        let trail = Arc::new(Mutex::new(Trail::default()));
        let matters = Arc::clone(&trail);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // An event that was lost may have been one that matters.
            if event.map_or(true, |event| lock(&matters).matters(&event)) {
                let _ended = tells.send(Told::Changed);
            }
        });
        Ok(Self { path, watcher: watcher.map_err(cannot_watch)?, trail })
    }

    /// Watches where the path leads now. A directory may have been removed and made anew, so those that were watched
    /// are watched anew too.
    fn follow(&mut self) -> notify::Result<()> {
        let trail = Trail::to(&self.path);
        let before = std::mem::replace(&mut *lock(&self.trail), trail.clone());
        for directory in &before.directories {
            let _is_gone = self.watcher.unwatch(directory);
        }
        let each = trail.directories.iter().map(|directory| self.watcher.watch(directory, RecursiveMode::NonRecursive));
        // All of them, before the first that cannot be watched is told of.
        each.collect::<Vec<_>>().into_iter().collect()
    }
}

/// The way to a file: where each of its links and it itself are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Trail {
    directories: BTreeSet<PathBuf>,
    entries: BTreeSet<PathBuf>,
}

impl Trail {
    /// Follows the absolute `path` through all links, up to the first part that is missing.
    fn to(path: &Path) -> Self {
        let parts =
            |path: &Path| path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect::<Vec<_>>();
        let (mut trail, mut at, mut ahead, mut links) = (Self::default(), PathBuf::new(), parts(path), 0);
        while let Some(part) = ahead.pop() {
            match part.components().next() {
                Some(Component::Normal(_)) => {}
                Some(Component::ParentDir) => {
                    at.pop();
                    continue;
                }
                Some(Component::RootDir | Component::Prefix(_)) => {
                    at.push(part);
                    continue;
                }
                Some(Component::CurDir) | None => continue,
            }
            let entry = at.join(&part);
            let found = fs::symlink_metadata(&entry);
            if found.as_ref().is_ok_and(|found| found.is_symlink()) && links < MOST_LINKS {
                links += 1;
                trail.directories.insert(at.clone());
                if let Ok(target) = fs::read_link(&entry) {
                    ahead.extend(parts(&target));
                }
                trail.entries.insert(entry);
            } else if found.is_ok() && !ahead.is_empty() {
                at = entry;
            } else {
                trail.directories.insert(at);
                trail.entries.insert(entry);
                break;
            }
        }
        trail
    }

    fn matters(&self, event: &Event) -> bool {
        let only_read = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
            EventKind::Access(_) => true,
            _ => false,
        };
        let is_on_it = |path: &PathBuf| self.entries.contains(path) || self.directories.contains(path);
        !only_read && (event.paths.is_empty() || event.paths.iter().any(is_on_it))
    }
}

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    #[test]
    fn the_way_to_a_file_goes_through_every_link_and_ends_at_what_is_missing() {
        use std::os::unix::fs::symlink;

        use super::*;

        fn paths<const N: usize>(root: &Path, names: [&str; N]) -> BTreeSet<PathBuf> {
            names.iter().map(|name| root.join(name)).collect()
        }

        let root = std::env::temp_dir().join(format!("tollgate-trail-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("releases/7")).unwrap();
        fs::create_dir_all(root.join("etc")).unwrap();
        let root = fs::canonicalize(root).unwrap();
        fs::write(root.join("releases/7/rules.toml"), "").unwrap();
        symlink("./../releases/7", root.join("etc/current")).unwrap();
        symlink(root.join("etc/current/rules.toml"), root.join("rules.toml")).unwrap();
        symlink("round.toml", root.join("round.toml")).unwrap();

        let trail = Trail::to(&root.join("rules.toml"));
        assert_eq!(trail.directories, paths(&root, ["", "etc", "releases/7"]));
        assert_eq!(trail.entries, paths(&root, ["rules.toml", "etc/current", "releases/7/rules.toml"]));
        let missing = Trail::to(&root.join("etc/new/deep/rules.toml"));
        assert_eq!((missing.directories, missing.entries), (paths(&root, ["etc"]), paths(&root, ["etc/new"])));
        // What leads nowhere is followed as far as the system would.
        assert_eq!(Trail::to(&root.join("round.toml")).entries, paths(&root, ["round.toml"]));
        let plain = Trail::to(&root.join("releases/../releases/7/rules.toml"));
        assert_eq!(plain.directories, paths(&root, ["releases/7"]));

        let event = |kind, path: &str| Event::new(kind).add_path(root.join(path));
        let any = EventKind::Any;
        assert!(trail.matters(&event(any, "etc/current")) && trail.matters(&event(any, "releases/7")));
        assert!(trail.matters(&Event::new(any)), "an event without a path says that some were lost");
        assert!(!trail.matters(&event(any, "etc/other")));
        let reads = EventKind::Access(AccessKind::Open(AccessMode::Any));
        assert!(!trail.matters(&event(reads, "rules.toml")), "reading the file changes nothing");
        assert!(trail.matters(&event(EventKind::Access(AccessKind::Close(AccessMode::Write)), "rules.toml")));
        fs::remove_dir_all(root).unwrap();
    }
}
