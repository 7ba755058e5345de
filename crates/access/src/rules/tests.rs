//! Is each file read as it is meant, and is each fault reported?

use super::*;

const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

#[test]
fn a_file_says_what_tokens_and_requests_without_one_may_do() {
    let text = format!(
        "[[token]]\nname = \"ci\"\nsha256 = \"{SECRET}\"\nscopes = [\"infer\", \"read\"]\nmodels = [\"digits*\", \"echo\"]\n\
         requests_per_second = 100\nburst = 7\nbytes_per_second = 1_000_000\n\n[[token]]\nname = \"ops\"\nsecret = \"other\"\n\
         scopes = [\"control\"]\n\n[anonymous]\nscopes = [\"read\"]\nrequests_per_second = 5\n"
    );
    let Rules { tokens, anonymous, has_plain_secrets, states_tokens, states_anonymous } = read(&text).unwrap();
    assert!(states_tokens && states_anonymous);
    let [ci, ops] = &tokens[..] else { panic!("two tokens") };
    assert_eq!((ci.name.as_str(), ci.secret), ("ci", SecretHash::of(b"secret")));
    assert_eq!(ci.scopes, Scope::Infer.bit() | Scope::Read.bit());
    assert_eq!(ci.requests, Some(Rate { per_second: 100, burst: 7 }));
    assert_eq!(ci.bytes, Some(Rate { per_second: 1_000_000, burst: 1_000_000 }));
    assert_eq!(ci.models.as_ref().map(Vec::len), Some(2));
    assert_eq!((ops.scopes, &ops.models, ops.requests, ops.bytes), (Scope::Control.bit(), &None, None, None));
    assert_eq!((anonymous.name.as_str(), anonymous.scopes), ("anonymous", Scope::Read.bit()));
    assert_eq!(anonymous.requests, Some(Rate { per_second: 5, burst: 5 }));
    assert!(has_plain_secrets);
}

#[test]
fn without_a_word_of_it_nothing_is_allowed() {
    let rules = read(&format!("[[token]]\nname = \"a\"\nsha256 = \"{SECRET}\"\n")).unwrap();
    assert_eq!((rules.tokens[0].scopes, rules.anonymous.scopes, rules.has_plain_secrets), (0, 0, false));
    assert_eq!(read("").unwrap().tokens, []);
}

#[track_caller]
fn check(text: &str, faults: &[&str]) {
    let error = read(text).unwrap_err().0;
    assert_eq!(error.lines().count(), faults.len(), "{error}");
    for (line, part) in error.lines().zip(faults) {
        assert!(line.contains(part), "{line}\nis to contain\n{part}");
    }
}

fn token(members: &str) -> String {
    format!("[[token]]\nname = \"a\"\nsha256 = \"{SECRET}\"\n{members}\n")
}

#[test]
fn a_fault_is_reported_with_its_line_and_the_cure() {
    check("[[token]]\nname = 1\n", &["line 2: name is a text"]);
    check("[token\n", &["line 1: "]);
    check("[tokens]\n", &["line 1: 'tokens' is no part of the file"]);
    check("[[token]]\nname = \"a\"\n", &["line 1: a token has a name, and either sha256 or secret"]);
    check("[[token]]\nsecret = \"a\"\n", &["a token has a name"]);
    check("[[token]]\nname = \"a b\"\nsecret = \"a\"\n", &["line 2: a name has 1 to 64 letters"]);
    check("[[token]]\nname = \"anonymous\"\nsecret = \"a\"\n", &["choose another name"]);
    check("[[token]]\nname = \"a\"\nsha256 = \"12\"\n", &["sha256sum"]);
    check("[[token]]\nname = \"a\"\nsecret = \"\"\n", &["1 to 512 bytes, this one has 0"]);
    check(&token("secret = \"b\""), &["line 4: a token has sha256 or secret, not both"]);
    check(&token("scopes = [\"all\"]"), &["'all' is no scope; there are infer, control, regions, read"]);
    check(&token("scopes = \"read\""), &["scopes is a list of texts"]);
    check(&token("models = [\"a*b\"]"), &["has a '*' that is not its end"]);
    check(&token("requests_per_second = 0"), &["whole number of 1 or more"]);
    check(&token("requests_per_second = -1"), &["whole number of 1 or more"]);
    check(&token("bytes_per_second = 1.5"), &["whole number of 1 or more"]);
    check(&token("burst = 3"), &["burst needs requests_per_second"]);
    check(&token("bytes_burst = 3"), &["bytes_burst needs bytes_per_second"]);
    check(&token("rate = 3"), &["line 4: a token has no 'rate'; it has name, sha256"]);
    check("[anonymous]\nsecret = \"a\"\n", &["line 2: [anonymous] has no secret"]);
    let twice = format!("{0}{0}", token(""));
    check(&twice, &["two tokens are called 'a'", "token 'a' has the secret of another"]);
    check(&token("rate = 3\nburst = 0"), &["line 4: a token has no 'rate'", "line 5: burst is a whole number"]);
}

#[test]
fn no_fault_quotes_a_secret() {
    for text in
        ["[[token]]\nsecret = \"hidden\nname = 1", "[[token]]\nname = 1\nsecret = \"hidden\"\nsha256 = \"hidden\""]
    {
        assert!(!read(text).unwrap_err().0.contains("hidden"), "{text}");
    }
}

#[test]
fn a_file_has_a_bounded_number_of_tokens_and_models() {
    let many: Vec<_> = (0..=TOKENS_MAX).map(|n| format!("[[token]]\nname = \"t{n}\"\nsecret = \"s{n}\"\n")).collect();
    check(&many.concat(), &["the file has 1025 tokens, at most 1024 are taken"]);
    let models: Vec<String> = (0..=PATTERNS_MAX).map(|n| format!("\"m{n}\"")).collect();
    check(&token(&format!("models = [{}]", models.join(","))), &["models has 257 names, at most 256 are taken"]);
}
