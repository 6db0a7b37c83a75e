"""Jobs that made steps and now make none."""


def all_stand(job, function="main", **more):
    for rank in job.ranks:
        rank.stands_at(function, **more)
