exec(open("/work/lab/tab.py").read().split("print(\"| name")[0])
from concurrent.futures import ProcessPoolExecutor
def likely_of(step,least): return [c for c,p in zip(step.among,step.chances,strict=True) if p>=least]
MODE={"explore":0.0,"entropy":0.0}
def branched(row, example, table, settings, rng):
    b=settings.branch
    later = rng.random() < b.later
    if later and rng.random()<MODE["explore"]:
        table.given=[]
        tmp,first=None,None
        # first choice uniform
        _,p0=C.play(row,example,table,rng)
        lk=likely_of(p0[0],b.min_chance)
        table.given=[rng.choice(lk)]
        _,path=C.play(row,example,table,rng)
    else:
        _, path = C.play(row, example, table, rng)
    turn = rng.randrange(1, len(path)) if later and len(path)>1 else 0
    step = path[turn]
    likely = likely_of(step,b.min_chance)
    found = []
    names=rng.sample(likely, min(len(likely), settings.group_size))
    for choice in names:
        table.given = [*(one.among[one.chosen] for one in path[:turn]), choice]
        episode, steps = C.play(row, example, table, None)
        one = steps[turn]
        found.append((episode, [C.Step(one.key, [choice], [0.0], 0)]))
    if MODE["entropy"]:
        ch=dict(zip(step.among,step.chances)); z=sum(ch[n] for n in names)
        ea=[-MODE["entropy"]*math.log(ch[n]/z) for n in names]; m=mean(ea)
        for n,x in zip(names,ea): table.logits[step.key][n]+=RATE*(x-m)
    return found
C.branched=branched
def job(a):
    stop,strongest,rate,seed,explore,entropy,steps=a
    global RATE
    RATE=rate
    Start.stop,Start.strongest=stop,strongest; MODE.update(explore=explore,entropy=entropy)
    s=Grpo.model_validate(params.grpo.model_dump())
    t=C.trained(rows,s,steps,rate,seed)
    return C.told(f"stop {stop} st {strongest} rate {rate} s{seed} ex {explore} en {entropy} steps {steps}",t,aside,unit), C.likeliest(t,("neutral","cheap")) if seed==0 else ""
if __name__=="__main__":
    jobs=eval(sys.argv[1])
    with ProcessPoolExecutor(2) as p:
        for l,x in p.map(job,jobs):
            print(l); 
            if x: print(x)
            sys.stdout.flush()
