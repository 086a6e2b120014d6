exec(open("/work/lab/tab2.py").read().split("if __name__")[0])
import itertools
def run(a):
    l,_=job(a[0]); cells=[x.strip() for x in l.split("|")][2:-1]
    return a,[float(x) for x in cells]
if __name__=="__main__":
    configs=eval(sys.argv[1]); seeds=int(sys.argv[2])
    jobs=[((c[0],c[1],c[2],s,c[3],c[4],c[5]),c) for c in configs for s in range(seeds)]
    from collections import defaultdict
    got=defaultdict(list)
    with ProcessPoolExecutor(1) as p:
        for a,v in p.map(run,jobs,chunksize=2):
            got[a[1]].append(v)
            if len(got[a[1]])==seeds:
                r=got[a[1]]; m=[mean(x) for x in zip(*r)]
                print(a[1],"acc %.1f c %.2f cheap %.2f fast %.2f prefer %.2f avoid %.2f | "%tuple(m[:6])+" ".join("%.3f"%x for x in m[6:]),"min neutral %.3f"%min(x[6] for x in r),flush=True)
