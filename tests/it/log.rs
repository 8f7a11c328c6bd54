use gateway::access::Principal;
use gateway::database::*;
use gateway::session::*;

#[tokio::test]
async fn smoke() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(DatabaseConfig::Directory(dir.path().into())).await.unwrap();
    let s = Sessions::new(db.clone(), "node_1".into(), SessionLimits { sessions: 10, stored_bytes: 1 << 30 });
    let p = Principal::owner();
    let by = By { principal: p.0.clone(), client: None, via: Via::Mcp };
    let i = s.open(&p, &"demo".parse().unwrap(), &by).await.unwrap();
    let e = NewEvent::of(by.clone(), &Body::UserMessage { content: "hi".into() });
    println!(
        "{:?}",
        s.append(&i, At::End, &[e.clone(), NewEvent { id: EventId::new(), ..e }]).await.unwrap()
    );
    println!(
        "{}",
        serde_json::to_string_pretty(&s.slice(&i, Slice::default()).await.unwrap().to_json()).unwrap()
    );
    println!("{:?}", s.list(&p, &Listing::default()).await.unwrap());
    s.archive(&i, &by).await.unwrap();
    s.delete(&i).await.unwrap();
    println!("{:?}", s.list(&p, &Listing::default()).await.unwrap());
    db.close().await;
}
