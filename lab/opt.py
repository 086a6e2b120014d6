exec(open("/work/lab/tab.py").read().split("print(\"| name")[0])
from orchestra.evaluation.outcomes import outcome, utility
STATES=("first","nothing","unsure","one","agree","differ","found")
def value(table,kind,rs):
    rng=random.Random(9); tot=0;acc=0;usd=0
    for row in rs:
        ex=C.wished(row.example,kind,rng)
        e,_=C.play(row,ex,table,None); o=outcome(e,ex); tot+=utility(o,ex.preference,unit); acc+=o.solved; usd+=o.cost_usd
    return tot/len(rs),acc/len(rs),100*usd/len(rs)
class Fixed(C.Table):
    def __init__(self,pol): self.pol=pol; self.given=()
    def draw(self,key,among,rng):
        for c in self.pol[key[1]]:
            if c in among: return C.Step(key,among,[1]*len(among),among.index(c))
        return C.Step(key,among,[1]*len(among),0)
import itertools
for kind in C.KINDS:
    best=None
    ch=[*C.WORDS,"search","answer"]+([*C.OTHERS,"named"] if kind in("prefer","avoid") else [])
    for start in (("search","best"),("cheapest","answer"),("best","answer")):
        pol={s:[start[0] if s=="first" else start[1] if s=="one" else "answer" if s in("agree","found") else "best","answer","cheapest"] for s in STATES}
        cur=value(Fixed(pol),kind,rows[:700])[0]; moved=True
        while moved:
            moved=False
            for s in STATES:
                for c in ch:
                    if c==pol[s][0]: continue
                    old=pol[s]; pol[s]=[c,old[1] if old[1]!=c else "cheapest","cheapest","answer"]
                    v=value(Fixed(pol),kind,rows[:700])[0]
                    if v>cur+.001: cur=v; moved=True
                    else: pol[s]=old
        if best is None or cur>best[0]: best=(cur,{k:v[0] for k,v in pol.items()},value(Fixed(pol),kind,aside))
        print("   ",kind,start,round(cur,3),{k:v[0] for k,v in pol.items()},[round(x,3) for x in value(Fixed(pol),kind,aside)],flush=True)
