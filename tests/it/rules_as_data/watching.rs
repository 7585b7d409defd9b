//! Rule files that are read again when they change, however that comes about.

use std::{
    fs,
    path::{Path, PathBuf},
};

use http::Request;
use tokio_test::block_on;
use tollgate::{
    Limiter,
    config::{Registry, Rules, Watch},
};

use crate::soon::comes_to;

/// A directory of its own, which is gone with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-watch-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Saves a file in one step.
fn save(path: &Path, text: impl AsRef<[u8]>) {
    let beside = path.with_extension("beside");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

/// A file whose one rule has a limit of this many an hour.
fn text(permits: u64) -> String {
    format!("[[policies]]\nid = 'all'\nkey = 'global'\nlimit = '{permits}/1h'\n")
}

/// A limiter by a file that is watched.
struct Watched {
    limiter: Limiter<Request<()>>,
    watch: Watch,
}

impl Watched {
    fn new(path: &Path) -> Self {
        let rules = Rules::from_path(path).unwrap();
        let limiter = Limiter::new(rules.build(&Registry::new()).unwrap());
        let watch = rules.watch(&limiter, Registry::new()).unwrap();
        Self { limiter, watch }
    }

    fn limit(&self) -> u64 {
        self.limiter.stats("all").unwrap().limit.permits()
    }

    /// Waits until it has so much of it: a file system tells a moment later.
    #[track_caller]
    fn soon(&self, what: &str, wanted: u64, found: impl Fn(&Self) -> u64) {
        block_on(comes_to(what, wanted, async || found(self)));
    }

    #[track_caller]
    fn soon_has(&self, permits: u64) {
        self.soon("an hour", permits, Self::limit);
    }

    #[track_caller]
    fn soon_failed(&self, files: u64) {
        self.soon("files that failed", files, |watched| watched.limiter.reloads().failed);
    }

    #[track_caller]
    fn soon_reloaded(&self, files: u64) {
        self.soon("files that were reloaded", files, |watched| watched.limiter.reloads().reloaded);
    }
}

#[test]
fn a_file_is_read_again_however_it_is_saved() {
    let directory = Directory::new("saved");
    let path = directory.join("rules.toml");
    fs::write(&path, text(1)).unwrap();
    let watched = Watched::new(&path);
    // In place.
    fs::write(&path, text(2)).unwrap();
    watched.soon_has(2);
    // Another file is renamed over it.
    fs::write(directory.join(".rules.toml.swp"), text(3)).unwrap();
    fs::rename(directory.join(".rules.toml.swp"), &path).unwrap();
    watched.soon_has(3);
    // The old one is moved aside first.
    fs::rename(&path, directory.join("rules.toml~")).unwrap();
    fs::write(&path, text(4)).unwrap();
    watched.soon_has(4);
    // And again in place: the file is another one than it was.
    fs::write(&path, text(5)).unwrap();
    watched.soon_has(5);
    assert!(watched.limiter.check_now(&Request::new(())).unwrap().is_allowed());
}

#[test]
fn a_file_that_is_gone_changes_nothing_is_counted_once_and_may_come_back() {
    let directory = Directory::new("gone");
    let path = directory.join("etc/rules.toml");
    fs::create_dir(directory.join("etc")).unwrap();
    fs::write(&path, text(1)).unwrap();
    let watched = Watched::new(&path);
    fs::remove_file(&path).unwrap();
    watched.soon_failed(1);
    save(&path, text(2));
    watched.soon_has(2);
    // With its directory, which is made anew.
    fs::remove_dir_all(directory.join("etc")).unwrap();
    watched.soon_failed(2);
    fs::create_dir(directory.join("etc")).unwrap();
    save(&path, text(3));
    watched.soon_has(3);
    save(&path, text(4));
    watched.soon_has(4);
    // Renamed away, with another one in its place.
    fs::create_dir(directory.join("new")).unwrap();
    fs::write(directory.join("new/rules.toml"), text(5)).unwrap();
    fs::rename(directory.join("etc"), directory.join("old")).unwrap();
    fs::rename(directory.join("new"), directory.join("etc")).unwrap();
    watched.soon_has(5);
    fs::write(&path, text(6)).unwrap();
    watched.soon_has(6);
}

/// As Kubernetes puts a ConfigMap into a directory: each version is a directory, and a link to the one in force is
/// swapped.
#[cfg(unix)]
#[test]
fn a_link_that_is_swapped_is_noticed_wherever_it_is_on_the_way() {
    use std::os::unix::fs::symlink;

    let directory = Directory::new("links");
    let version = |number: u64| {
        let name = format!("..version_{number}");
        fs::create_dir(directory.join(&name)).unwrap();
        fs::write(directory.join(&name).join("rules.toml"), text(number)).unwrap();
        symlink(&name, directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    };
    version(1);
    symlink("..data/rules.toml", directory.join("rules.toml")).unwrap();
    let watched = Watched::new(&directory.join("rules.toml"));
    for number in 2..5 {
        version(number);
        watched.soon_has(number);
        fs::remove_dir_all(directory.join(&format!("..version_{}", number - 1))).unwrap();
    }
    assert_eq!(watched.limiter.reloads().failed, 0);
    // The file that is linked to, far away, is saved in place.
    let elsewhere = Directory::new("elsewhere");
    fs::write(elsewhere.join("real.toml"), text(5)).unwrap();
    symlink(elsewhere.join("real.toml"), directory.join("rules.tmp")).unwrap();
    fs::rename(directory.join("rules.tmp"), directory.join("rules.toml")).unwrap();
    watched.soon_has(5);
    fs::write(elsewhere.join("real.toml"), text(6)).unwrap();
    watched.soon_has(6);
}

#[test]
fn a_bad_file_changes_nothing_and_is_counted_and_the_same_text_is_not_read_as_another() {
    let directory = Directory::new("bad");
    let path = directory.join("rules.toml");
    fs::write(&path, text(1)).unwrap();
    let watched = Watched::new(&path);
    for (failed, bad) in [(1, "policies = 5"), (2, "[[policies]]\nid = 'all'\nkey = 'unheard-of'\nlimit = '9/1h'\n")] {
        save(&path, bad);
        watched.soon_failed(failed);
        assert_eq!(watched.limit(), 1);
    }
    save(&path, text(1));
    watched.soon_reloaded(1);
    // Saved again as it is, and beside it something that nobody asked for.
    save(&path, text(1));
    fs::write(directory.join("other.toml"), text(7)).unwrap();
    save(&path, text(2));
    watched.soon_has(2);
    // It is counted when it is in force.
    watched.soon_reloaded(2);
    assert_eq!((watched.limiter.reloads().reloaded, watched.limiter.reloads().failed), (2, 2));
}

#[test]
fn it_is_read_when_asked_and_not_at_all_once_the_watch_is_dropped() {
    let directory = Directory::new("dropped");
    let path = directory.join("rules.toml");
    fs::write(&path, text(1)).unwrap();
    let Watched { limiter, watch } = Watched::new(&path);
    watch.reload();
    watch.reload();
    assert_eq!(limiter.reloads().reloaded, 2);
    assert!(format!("{watch:?}").contains("rules.toml"));
    drop(watch);
    fs::write(&path, text(2)).unwrap();
    // Another watch of the same file has noticed: so would the first one have.
    let rules = Rules::from_path(&path).unwrap();
    let other = Limiter::new(rules.build(&Registry::<()>::new()).unwrap());
    let second = Watched { watch: rules.watch(&other, Registry::new()).unwrap(), limiter: other };
    fs::write(&path, text(3)).unwrap();
    second.soon_has(3);
    assert_eq!((limiter.stats("all").unwrap().limit.permits(), limiter.reloads().reloaded), (1, 2));
}

#[test]
fn what_changed_between_reading_and_watching_is_not_missed() {
    let directory = Directory::new("between");
    let path = directory.join("rules.toml");
    fs::write(&path, text(1)).unwrap();
    let rules = Rules::from_path(&path).unwrap();
    fs::write(&path, text(2)).unwrap();
    let limiter = Limiter::new(rules.build(&Registry::<()>::new()).unwrap());
    let watched = Watched { watch: rules.watch(&limiter, Registry::new()).unwrap(), limiter };
    watched.soon_has(2);
}

#[test]
fn rules_that_come_from_no_file_cannot_be_watched() {
    let rules = Rules::from_toml("policies = []").unwrap();
    let error = rules.watch(&Limiter::<Request<()>>::new([]), Registry::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("Rules::from_path"), "{error}");
}
