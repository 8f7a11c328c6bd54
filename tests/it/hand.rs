//! The contract of every kind of hand.

use hands::Ending;

use crate::sandbox_kit::Rig;

#[tokio::test]
async fn a_call_runs_and_says_what_it_printed() {
    let rig = Rig::new();
    let seen = rig.bash("echo $((6*7)); id; ls -la / /workspace; cat /proc/self/status | grep -E 'Cap|Secc|NoNew'; echo hi > x; ls -ln; ps aux; exit 3").await;
    println!("{}", seen.text);
    assert_eq!(seen.ending, Ending::Error);
}
