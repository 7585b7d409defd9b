use super::{
    super::{
        data::{Key, MissingKey},
        problem::{Code, listed, shown},
        resolve::Alternative,
    },
    Checker,
};

impl Checker<'_> {
    pub(super) fn key(&mut self, one: &Alternative<'_>) {
        let Some((key, path)) = one.said("key", |entry| &entry.key) else {
            let path = format!("{}.key", one.path);
            let policy = one.policy.map(|(_, path)| format!("{path}.key"));
            if !self.is_there(&path) && !policy.is_some_and(|path| self.is_there(&path)) {
                let text = "there is no `key`; say what is counted by, such as key = \"peer_addr\", or key = \"global\" for one count for all";
                self.wrong(Code::MissingField, &one.path, text);
            }
            return;
        };
        self.key_parts(key, &path, true);
        let global = matches!(key, Key::Name(name) if name.0 == "global");
        if let Some((missing, path)) = one.said("on_missing_key", |entry| &entry.on_missing_key) {
            if global && one.own.on_missing_key.is_some() {
                self.wrong(Code::Conflict, &path, "a rule with key = \"global\" misses no key; drop it");
            }
            let empty = matches!(missing, MissingKey::Refuse(refusal) if refusal.refuse.is_none());
            if empty && !self.is_there(&format!("{path}.refuse")) {
                let text = "there is no `refuse`, the status; or say \"skip\" or \"share\"";
                self.wrong(Code::MissingField, path, text);
            }
        }
    }

    fn key_parts(&mut self, key: &Key, path: &str, outermost: bool) {
        let table = match key {
            Key::Name(name) => {
                match name.0.as_str() {
                    "client_addr" => self.needs_proxies(path, "peer_addr"),
                    "global" if !outermost => {
                        self.wrong(
                            Code::Conflict,
                            path,
                            "\"global\" is one count for all, and no part of a key; drop it",
                        );
                    }
                    _ => {}
                }
                return;
            }
            Key::Table(table) => table,
        };
        let said = [
            ("header", table.header.is_some()),
            ("cookie", table.cookie.is_some()),
            ("query", table.query.is_some()),
            ("path_param", table.path_param.is_some()),
            ("peer_addr_by", table.peer_addr_by.is_some()),
            ("client_addr_by", table.client_addr_by.is_some()),
            ("all", table.all.is_some()),
            ("first", table.first.is_some()),
        ];
        let mut there = said.iter().filter(|(_, said)| *said).map(|(name, _)| *name);
        match (there.next(), there.next()) {
            (Some(one), Some(other)) => {
                let text = format!(
                    "`{one}` and `{other}` are two keys; join them as all = [{{ {one} = .. }}, {{ {other} = .. }}], or keep one"
                );
                self.wrong(Code::Conflict, path, text);
            }
            (None, _) if !said.iter().any(|(name, _)| self.is_there(&format!("{path}.{name}"))) => {
                let names: Vec<_> = said.iter().map(|(name, _)| *name).collect();
                self.wrong(Code::MissingField, path, format!("it says no key; there are {}", listed(&names)));
            }
            _ => {}
        }
        match (&table.path_param, &table.path) {
            (Some(name), Some(pattern)) => {
                let has =
                    [format!("{{{}}}", name.0), format!("{{*{}}}", name.0)].iter().any(|part| pattern.0.contains(part));
                if !has {
                    let text = format!(
                        "{} has no parameter {}; write it as {{{}}}",
                        shown(&pattern.0),
                        shown(&name.0),
                        name.0
                    );
                    self.wrong(Code::BadPath, format!("{path}.path"), text);
                }
            }
            (Some(_), None) if !self.is_there(&format!("{path}.path")) => {
                self.wrong(Code::MissingField, path, "there is no `path`, the pattern that has the parameter");
            }
            (None, Some(_)) if !self.is_there(&format!("{path}.path_param")) => {
                self.wrong(
                    Code::Conflict,
                    format!("{path}.path"),
                    "a pattern is only of use beside `path_param`; drop it",
                );
            }
            _ => {}
        }
        if table.client_addr_by.is_some() {
            self.needs_proxies(&format!("{path}.client_addr_by"), "peer_addr_by");
        }
        for (name, parts) in [("all", &table.all), ("first", &table.first)] {
            let Some(parts) = parts else { continue };
            if !(2..=16).contains(&parts.len()) {
                let text = format!("{} keys; there are from 2 to 16", parts.len());
                self.wrong(Code::OutOfRange, format!("{path}.{name}"), text);
            }
            for (at, part) in parts.iter().enumerate() {
                self.key_parts(part, &format!("{path}.{name}[{at}]"), false);
            }
        }
    }
}
