--------------------------- MODULE LedgerRefines ---------------------------
(***************************************************************************)
(* Whether Ledger.tla refines the published BookKeeperProtocol             *)
(* (published/, by Jack Vanlightly), as far as docs/PROTOCOL.md claims it: *)
(* plain mode, E = WQ, one entry a read, no time-outs of a recovery, and   *)
(* changes of the ensemble by the owner alone.                             *)
(*                                                                         *)
(* The state of the published module is written down in terms of ours (the *)
(* refinement mapping), and each step of ours must then be one of its      *)
(* steps, or none. Some of its state is not in ours, so it is kept in      *)
(* variables of this module that nothing else looks at.                    *)
(*                                                                         *)
(* There entries count from 1, and a LAC of 0 means none.                  *)
(***************************************************************************)
EXTENDS LedgerSearch

CONSTANTS
    Nil,
    Amendments    \* those of Amended.tla that are in force

VARIABLES
    created,    \* the published module begins before the ledger is made
    heard,      \* <<client, entry, bookie>>: who confirmed an entry to a client, ever
    ownFrags,   \* the fragments and the version that the owner wrote last
    ownVersion,
    announced,  \* by recoverer: the version at which it is in the recovery, 0 before
    closer      \* whose closing write was applied

refineVars == <<searchVars, created, heard, ownFrags, ownVersion, announced, closer>>

-----------------------------------------------------------------------------
(* The mapping. *)

Set(ens) == { ens[s] : s \in Slots }
Entry(e) == [id |-> e + 1, data |-> e + 1]
Frags(frags) ==
    [i \in 1..Len(frags) |-> [id |-> i, ensemble |-> Set(frags[i].ens), first_entry_id |-> frags[i].first + 1]]

Pendings(p) ==
    { [entry |-> Entry(e), fragment_id |-> Len(p.frags), ensemble |-> Set(p.ens)] : e \in (p.lac + 1)..p.lap }

Confirmed(c) == [id \in 1..Entries |-> { b \in Bookies : <<c, id - 1, b>> \in heard }]

Nobody(c) ==
    [id |-> c, meta_version |-> Nil, status |-> Nil, curr_fragment |-> Nil, fragments |-> <<>>,
     pending_add_ops |-> {}, lap |-> 0, lac |-> 0, confirmed |-> [id \in 1..Entries |-> {}], fenced |-> {},
     recovery_ensemble |-> {}, curr_read_entry |-> Nil, read_responses |-> {}, recovery_phase |-> 0,
     last_recoverable_entry |-> Nil]

(* The owner is open there until it has read that it is not, or its closing write was applied. *)
HasReadItsEnd == owner.mode \in {"dead", "closed"} /\ owner.known.state # "OPEN" /\ closer # Owner

MappedOwner ==
    IF ~created THEN Nobody(Owner)
    ELSE [Nobody(Owner) EXCEPT
            !.meta_version = IF HasReadItsEnd THEN Nil ELSE IF closer = Owner THEN meta.version
                             ELSE ownVersion,
            !.status = IF closer = Owner THEN "CLOSED"
                       ELSE IF HasReadItsEnd \/ owner.mode = "dead" THEN "WITHDRAWN" ELSE "OPEN",
            !.curr_fragment = LastOf(Frags(ownFrags)),
            !.fragments = Frags(ownFrags),
            !.pending_add_ops = Pendings(owner.p),
            !.lap = owner.p.lap + 1,
            !.lac = owner.p.lac + 1,
            !.confirmed = Confirmed(Owner)]

(* A recovery is announced there, and its fences are under way, from the moment at which the store applies the
   announcement, though our recoverer has not read that yet: one announcement is two observations. *)
Reads(r) == rec[r].round >= 1
IsReading(r) == Reads(r) /\ rec[r].phase = "reading" /\ ~rec[r].asking

ReadAnswerThere(m) ==
    [type |-> "ReadResponse", bookie |-> m.bookie, cid |-> m.to,
     entry |-> IF m.first \in m.found THEN Entry(m.first) ELSE [id |-> m.first + 1, data |-> Nil],
     fence |-> TRUE, code |-> IF m.first \in m.found THEN "OK" ELSE "NoSuchEntry"]

MappedRecoverer(r) ==
    LET x == rec[r]
        isFencing == x.phase \notin {"none", "announcing"} /\ x.fenced # {}
    IN IF announced[r] = 0 THEN Nobody(r)
       ELSE [Nobody(r) EXCEPT
            !.meta_version = IF closer = r THEN meta.version ELSE announced[r],
            !.status = IF closer = r THEN "CLOSED" ELSE "IN_RECOVERY",
            !.curr_fragment = LastOf(Frags(meta.frags)),
            !.fragments = Frags(meta.frags),
            !.pending_add_ops = IF Reads(r) THEN Pendings(x.p) ELSE {},
            !.lap = IF Reads(r) THEN x.p.lap + 1 ELSE IF isFencing THEN x.start + 1 ELSE 0,
            !.lac = IF Reads(r) THEN x.p.lac + 1 ELSE IF isFencing THEN x.start + 1 ELSE 0,
            !.confirmed = Confirmed(r),
            !.fenced = IF Reads(r) THEN {} ELSE { x.frozen.ens[s] : s \in x.fenced },
            !.recovery_ensemble = IF x.end # None THEN {} ELSE Set(LastOf(meta.frags).ens),
            !.curr_read_entry = IF IsReading(r) THEN x.next + 1 ELSE Nil,
            !.read_responses = IF IsReading(r)
                               THEN { ReadAnswerThere(m) : m \in { m \in gone : m.type = "read" /\ m.to = r
                                                                              /\ m.round = x.round } }
                               ELSE {},
            !.recovery_phase = IF Reads(r) THEN 2 ELSE 1,
            !.last_recoverable_entry = IF x.end = None THEN Nil ELSE x.end + 1]

(* Messages there are counted: 1 is under way, 0 was taken. What is due is sent. *)
DueAdds == { Frame(Owner, owner.p, s, NextDue(owner.p, s), NextDue(owner.p, s), owner.p.lac, owner.p.lafr, FALSE)
             : s \in OwnerDue }
DueBacks(r) ==
    LET x == rec[r]
    IN { Frame(r, x.p, s, NextDue(x.p, s), NextDue(x.p, s), x.lac, NoEntry, TRUE)
         : s \in { s \in RecDue(r) : \E m \in msgs : m.type = "add" /\ m.from = r /\ m.first = NextDue(x.p, s) } }
Fences(r) ==
    IF announced[r] = 0 THEN {}
    ELSE { [type |-> "fence", from |-> r, to |-> LastOf(meta.frags).ens[s], slot |-> s] : s \in Slots }

Under == { m \in msgs : m.type # "write" }
            \union DueAdds \union UNION { DueBacks(r) \union Fences(r) : r \in Recoverers }

There(m) ==
    CASE m.type = "add" -> [type |-> "AddRequest", bookie |-> m.to, cid |-> m.from, entry |-> Entry(m.first),
                            lac |-> m.lac + 1, recovery |-> m.recovery]
      [] m.type = "added" -> [type |-> "AddResponse", bookie |-> m.bookie, cid |-> m.to,
                              entry |-> Entry(m.first), recovery |-> m.to # Owner, success |-> m.status = "ok"]
      [] m.type = "fence" -> [type |-> "FenceRequest", bookie |-> m.to, cid |-> m.from]
      [] m.type = "fenced" -> [type |-> "FenceResponse", bookie |-> m.bookie, cid |-> m.to, lac |-> m.lac + 1]
      [] m.type = "readask" -> [type |-> "ReadRequest", bookie |-> m.to, cid |-> m.from,
                                entry_id |-> m.first + 1, fence |-> TRUE]
      [] m.type = "read" -> ReadAnswerThere(m)

(* After a verdict the reads of its entry that are still under way are taken there, and never come. *)
IsIgnored(m) ==
    \/ m.type = "readask" /\ ~(IsReading(m.from) /\ rec[m.from].round = m.round)
    \/ m.type = "read" /\ ~(IsReading(m.to) /\ rec[m.to].round = m.round)

Count(m) == IF m \in gone \/ IsIgnored(m) THEN 0 ELSE 1

MappedMessages ==
    [t \in { There(m) : m \in Under } |-> Count(CHOOSE m \in Under : There(m) = t)]

P == INSTANCE Amended WITH
    Clients <- Recoverers \union {Owner},
    WriteQuorum <- WQ, AckQuorum <- AQ, SendLimit <- Entries, InflightLimit <- Entries,
    NoSuchEntry <- "NoSuchEntry", Unknown <- "Unknown", OK <- "OK", NeedMoreResponses <- "NeedMore",
    STATUS_OPEN <- "OPEN", STATUS_IN_RECOVERY <- "IN_RECOVERY", STATUS_CLOSED <- "CLOSED",
    CLIENT_WITHDRAWN <- "WITHDRAWN", RECOVERY_ABORTED <- "ABORTED",
    AddEntryRequestMessage <- "AddRequest", AddEntryResponseMessage <- "AddResponse",
    FenceRequestMessage <- "FenceRequest", FenceResponseMessage <- "FenceResponse",
    ReadRequestMessage <- "ReadRequest", ReadResponseMessage <- "ReadResponse",
    meta_status <- IF created THEN meta.state ELSE Nil,
    meta_fragments <- IF created THEN Frags(meta.frags) ELSE <<>>,
    meta_last_entry <- IF meta.last = None THEN 0 ELSE meta.last + 1,
    meta_version <- IF created THEN meta.version ELSE 0,
    b_entries <- [b \in Bookies |-> { Entry(e) : e \in bookie[b].entries }],
    b_fenced <- [b \in Bookies |-> bookie[b].fenced],
    b_lac <- [b \in Bookies |-> bookie[b].lac + 1],
    clients <- [c \in Recoverers \union {Owner} |-> IF c = Owner THEN MappedOwner ELSE MappedRecoverer(c)],
    messages <- MappedMessages

-----------------------------------------------------------------------------
RefineInit ==
    /\ SearchInit
    /\ created = FALSE /\ heard = {} /\ ownFrags = meta.frags /\ ownVersion = meta.version
    /\ announced = [r \in Recoverers |-> 0] /\ closer = Nil

Create == ~created /\ created' = TRUE /\ UNCHANGED <<searchVars, heard, ownFrags, ownVersion, announced, closer>>

(* What the published module has besides follows from a step. *)
Follow ==
    /\ heard' = (heard \union
        { <<m.to, m.first, m.bookie>> : m \in { m \in gone' \ gone : m.type = "added" /\ m.status = "ok" } })
        \ (IF DOMAIN owner'.repl = {} THEN {}
           ELSE { <<Owner, e, owner.p.ens[s]>> : e \in (owner.p.lac + 1)..(Entries - 1), s \in DOMAIN owner'.repl })
    /\ IF meta.state = "OPEN" /\ meta'.state = "OPEN" /\ meta' # meta
       THEN ownFrags' = meta'.frags /\ ownVersion' = meta'.version
       ELSE UNCHANGED <<ownFrags, ownVersion>>
    /\ announced' = [r \in Recoverers |->
        IF announced[r] # 0 THEN announced[r]
        ELSE IF meta.state = "OPEN" /\ meta'.state = "IN_RECOVERY" /\ \E m \in gone' \ gone : m.from = r
        THEN meta'.version
        ELSE IF rec'[r].phase = "fencing" THEN meta.version ELSE 0]
    /\ closer' = IF meta'.state = "CLOSED" /\ meta.state # "CLOSED"
                 THEN (CHOOSE m \in gone' \ gone : TRUE).from ELSE closer

(* Messages that come late and change nothing are not taken there: reads after their verdict, answers to who has
   closed the ledger, answers of bookies that are being replaced. *)
NeverComes(m) ==
    \/ m.type \in {"read", "readask"} /\ IsIgnored(m)
    \/ m.type = "added" /\ m.to = closer
    \/ m.type = "added" /\ m.to = Owner /\ IsCurrent(owner.p, m) /\ SlotOf(owner.p, m.bookie) \in owner.p.replacing

RefineNext ==
    \/ Create
    \/ /\ created
       /\ IF IsDue THEN SendOne /\ Quiet
          ELSE \/ \E m \in msgs \ gone : /\ ~NeverComes(m)
                                         /\ Takes(m) /\ gone' = gone \union {m} /\ UNCHANGED left
               \/ Act
       /\ \A r \in Recoverers : IsWritingBack(rec[r]) => rec'[r].p.frags = rec[r].p.frags
       /\ Follow
       /\ UNCHANGED created

RefineSpec == RefineInit /\ [][RefineNext]_refineVars

Published == P!AmendedSpec
=============================================================================
