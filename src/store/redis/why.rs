//! What an error of the client or of the server means to whoever set the store up, and the way out.

use ::redis::{ConnectionAddr, ErrorKind, RedisError};

use crate::error::StoreError;

/// Why there is no connection.
#[derive(Debug, Clone)]
pub(super) struct NoConnection {
    /// What whoever asks is told.
    pub(super) error: StoreError,
    /// The way out, where the settings have to be changed for it and waiting does not help.
    pub(super) way_out: Option<&'static str>,
}

const URL: &str = "this is no URL of a Redis server; write redis://host:6379, redis://user:password@host:6379/0 (what is \
                   special in a password as %40 and so on), rediss:// for TLS, or unix:///path/to/socket";
const NO_TLS: &str = "rediss:// is TLS, which needs the feature `redis-rustls` of this crate";
const PASSWORD: &str = "; user or password are missing or wrong: redis://user:password@host, or redis://:password@host \
                        for the user `default`";
const PERMISSION: &str = "; its user lacks a permission: +eval +evalsha +get +mget +set +del +time on ~tg1:*, and what the \
                          guide's page on Redis lists for logs and places";
const REPLICA: &str = "; only a master counts";
const WANTS_PLAIN: &str = "; rediss:// needs a port that speaks TLS";
const WANTS_TLS: &str = "; a port that speaks TLS needs rediss://";

/// What is wrong with `url`. It may hold a password, so it is not shown.
pub(super) fn no_url(url: &str, error: RedisError) -> StoreError {
    let is_tls = url.starts_with("rediss:");
    StoreError::caused_by(if is_tls && !cfg!(feature = "redis-rustls") { NO_TLS } else { URL }, error)
}

/// Why no connection to `address` could be made.
pub(super) fn no_connection(address: &ConnectionAddr, error: RedisError) -> NoConnection {
    let lasting = if error.kind() == ErrorKind::AuthenticationFailed || error.code() == Some("NOAUTH") {
        Some(PASSWORD)
    } else if is_of_the_user(&error) {
        Some(PERMISSION)
    } else if error.code().is_none() && error.to_string().starts_with(IS_REPLICA) {
        Some(REPLICA)
    } else {
        None
    };
    let hint = lasting.or(match address {
        ConnectionAddr::TcpTls { .. } if error.is_timeout() => Some(WANTS_PLAIN),
        // A server of TLS hangs up on whoever begins with a command; one that is not there refuses.
        ConnectionAddr::Tcp(..) if error.is_connection_dropped() && !error.is_connection_refusal() => Some(WANTS_TLS),
        _ => None,
    });
    let message = format!("there is no connection to Redis at {address}{}", hint.unwrap_or_default());
    NoConnection { error: StoreError::caused_by(message, error), way_out: lasting }
}

/// What says that a server is a replica.
pub(super) const IS_REPLICA: &str = "the server is a replica";

/// Why a connection is not used any more.
pub(super) fn given_up(error: RedisError) -> NoConnection {
    NoConnection { error: StoreError::caused_by("there is no connection to Redis", error), way_out: None }
}

/// What the server said instead of an answer.
pub(super) fn refused(error: RedisError) -> StoreError {
    if is_of_the_user(&error) {
        return StoreError::caused_by(format!("Redis refused the command{PERMISSION}"), error);
    }
    let of_one_request = is_of_a_key(&error);
    let error = StoreError::caused_by("Redis refused the command", error);
    if of_one_request { error.of_one_request() } else { error }
}

/// Whether an error is about what the user may do. In a script it has no code of its own.
fn is_of_the_user(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
        || error.detail().is_some_and(|detail| detail.contains("user executing the script can't"))
}

/// Whether an error is about what somebody else has written to a key: questions about others have an answer.
fn is_of_a_key(error: &RedisError) -> bool {
    // What fails in a script itself is a value that it cannot read, and begins with where; what a command that the
    // script calls fails of ends with it.
    let where_in_script = "user_script:";
    match error.code() {
        Some("WRONGTYPE") => true,
        Some("ERR") => error.detail().is_some_and(|detail| {
            let before_7 = detail.starts_with("Error running script");
            detail.starts_with(where_in_script)
                || before_7 && (detail.contains(" user_script:") || detail.contains(": WRONGTYPE"))
        }),
        Some(code) => code.starts_with(where_in_script),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use ::redis::{Value, parse_redis_value};

    use super::*;

    fn said(text: &str) -> RedisError {
        match parse_redis_value(format!("-{text}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error.into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_what_a_key_holds_is_of_one_request() {
        let rows = [
            ("WRONGTYPE Operation against a key holding the wrong kind of value", true),
            ("WRONGTYPE Operation against a key script: 0a7, on @user_script:64.", true),
            ("ERR user_script:12: bad argument #2 to 'unpack' script: 0a7, on @user_script:12.", true),
            ("user_script:12: bad argument #2 to 'unpack' script: 0a7, on @user_script:12.", true),
            // Redis 5 and 6.
            ("ERR Error running script (call to f_0a7): @user_script:12: user_script:12: bad argument #2", true),
            ("ERR Error running script (call to f_0a7): @user_script:12: WRONGTYPE Operation against a key", true),
            ("ERR Error running script (call to f_0a7): @user_script:64: @user_script: 64: -OOM command not", false),
            ("OOM command not allowed when used memory > 'maxmemory'. script: 0a7, on @user_script:64.", false),
            ("MISCONF Errors writing to the AOF file script: 0a7, on @user_script:64.", false),
            ("ERR something else that a command failed of script: 0a7, on @user_script:64.", false),
            ("ERR The user executing the script can't run this command script: 0a7, on @user_script:64.", false),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", false),
        ];
        for (text, of_one_request) in rows {
            assert_eq!(refused(said(text)).is_of_one_request(), of_one_request, "{text}");
        }
    }

    #[test]
    fn what_the_settings_have_to_be_changed_for_is_told_with_the_way_out() {
        let plain = ConnectionAddr::Tcp("limits.internal".into(), 6379);
        let rows = [
            (said("NOAUTH Authentication required."), true, "redis://user:password@host"),
            (said("NOPERM this user has no permissions to run the 'eval' command"), true, "+eval"),
            ((ErrorKind::Client, IS_REPLICA).into(), true, "only a master"),
            (said("LOADING Redis is loading the dataset in memory"), false, "limits.internal:6379"),
            (std::io::Error::from(std::io::ErrorKind::ConnectionReset).into(), false, "TLS needs rediss://"),
        ];
        for (error, lasting, says) in rows {
            let why = no_connection(&plain, error);
            assert_eq!(why.way_out.is_some(), lasting, "{}", why.error);
            assert!(why.error.to_string().contains(says), "{}", why.error);
        }
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let why = no_connection(&plain, refused.into()).error.to_string();
        assert_eq!(why, "there is no connection to Redis at limits.internal:6379");
    }

    #[test]
    fn a_url_that_is_none_is_told_how_one_looks_and_not_shown() {
        let url = "localhost:6379/?password=geheim";
        let error = ::redis::Client::open(url).map(drop).unwrap_err();
        let text = no_url(url, error).to_string();
        assert!(text.contains("redis://host:6379") && !text.contains("geheim"), "{text}");
    }
}
