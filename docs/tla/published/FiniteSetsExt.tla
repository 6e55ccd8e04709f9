--------------------------- MODULE FiniteSetsExt ---------------------------
(* The operators of the community module of this name that BookKeeperProtocol.tla uses, written anew: TLC's jar
   does not have the community modules. *)
LOCAL INSTANCE Naturals
LOCAL INSTANCE FiniteSets

Quantify(S, P(_)) == Cardinality({ s \in S : P(s) })
Max(S) == CHOOSE x \in S : \A y \in S : x >= y
=============================================================================
