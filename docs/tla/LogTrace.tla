------------------------------- MODULE LogTrace -------------------------------
(***************************************************************************)
(* Whether recorded runs of the program are behaviours of Log.tla; see     *)
(* Following.tla.                                                          *)
(***************************************************************************)
EXTENDS Log, Following

traceVars == <<vars, run, at, verdict>>

-----------------------------------------------------------------------------
(* What is compared with the state of a process of the program. *)

Part(x, names) == [name \in names |-> x[name]]

Always == {"phase", "tokens", "attempt", "waiting"}
OfTakeover == {"aim", "base", "counts", "short", "made", "tried"}
OfLeader ==
    {"known", "tried", "current", "draining", "spare", "wants", "asked", "splice", "closed", "settling",
     "refused", "again", "finishing", "sent", "next"}
OfResolving == {"toEnd", "ends", "shorts", "sent", "next"}

ProcessView(x) ==
    Part(x, Always \union (IF IsTakingOver(x) THEN OfTakeover
                           ELSE IF x.phase = "leading" THEN OfLeader
                           ELSE IF x.phase = "resolving" THEN OfResolving
                           ELSE {}))

-----------------------------------------------------------------------------
Does(s) ==
    CASE s.ev = "store applies"    -> StoreApplies(s.m)
      [] s.ev = "truncates"        -> Truncates(s.to)
      [] s.ev = "deletes"          -> Deletes(s.l)
      [] s.ev = "accepts loss"     -> AcceptsLoss(s.l, s.end)
      [] s.ev = "asks for splice"  -> AsksForSplice(s.n)
      [] s.ev = "withdraws"        -> Withdraws(s.l)
      [] s.ev = "splices"          -> Splices(s.l)
      [] s.ev = "crashes"          -> Crashes(s.p)
      [] s.ev = "begins"           -> Begins(s.p, s.aim)
      [] s.ev = "takeover reads"   -> TakeoverReads(s.p)
      [] s.ev = "recovers"         -> Recovers(s.p, s.l, s.end)
      [] s.ev = "stops at loss"    -> StopsAtLoss(s.p, s.l, s.end, s.to) /\ s.kept = s.l
      [] s.ev = "creates"          -> Creates(s.p)
      [] s.ev = "gives up"         -> GivesUp(s.p)
      [] s.ev = "cannot write"     -> CannotWrite(s.p)
      [] s.ev = "appends"          -> Appends(s.p)
      [] s.ev = "confirms"         -> Confirms(s.p, s.l)
      [] s.ev = "finds closed"     -> FindsClosed(s.p, s.l)
      [] s.ev = "fails"            -> Fails(s.p, s.l)
      [] s.ev = "finds end"        -> FindsEnd(s.p, s.l, s.end)
      [] s.ev = "leaves"           -> Leaves(s.p)
      [] s.ev = "wants roll"       -> WantsRoll(s.p)
      [] s.ev = "sees request"     -> SeesRequest(s.p)
      [] s.ev = "admits"           -> Admits(s.p, s.l)
      [] s.ev = "creates spare"    -> CreatesSpare(s.p)
      [] s.ev = "finishes"         -> Finishes(s.p)
      [] s.ev = "closes"           -> Closes(s.p)
      [] s.ev = "writes"           -> Writes(s.p)
      [] s.ev = "hears"            -> Hears(s.p, s.m)
      [] s.ev = "stops waiting"    -> StopsWaiting(s.p)
      [] s.ev = "leader reads"     -> LeaderReads(s.p)

(* Exactly these messages are sent. *)
Sends(out) == msgs' \ msgs = out

Sees(what) ==
    CASE what.kind = "record"  -> rec' = what.is
      [] what.kind = "ledgers" -> ledgers' = what.is
      [] what.kind = "process" -> ProcessView(proc'[what.name]) = what.is

SeesAll(see) == \A i \in 1..Len(see) : Sees(see[i])

Step ==
    /\ Advances
    /\ LET s == Steps[at] IN Does(s) /\ Sends(s.out) /\ SeesAll(s.see)

Accept == IsAccepted /\ UNCHANGED vars

(* Why a step is refused: what the module says instead, as far as it allows the action at all. *)
Why(s) ==
    IF ~ENABLED Does(s) THEN "not allowed"
    ELSE IF ~ENABLED (Does(s) /\ Sends(s.out)) THEN "other messages"
    ELSE "another state"

Refuse == Explains /\ IsOnItsWay /\ ~ENABLED Step /\ IsRefused(Why(Steps[at])) /\ UNCHANGED vars

TraceInit == Init /\ AtBeginning

TraceNext == Step \/ Accept \/ Refuse

TraceSpec == TraceInit /\ [][TraceNext]_traceVars
=============================================================================
