/* At most 5 hits in any 60 seconds, with hiredis: cc hiredis.c -lhiredis && ./a.out [KEY] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <hiredis/hiredis.h>

/* Error replies of a Redis that is away, or can't run hits now. */
static const char *UNABLE[] = {"UPSTREAMDOWN", "LOADING", "BUSY", "OOM", "READONLY", "MASTERDOWN",
                               "CLUSTERDOWN", "MISCONF", "NOREPLICAS", NULL};
static redisContext *client;

/* A new connection; *refused: the error reply to the login, if there is one. */
static redisContext *opened(redisReply **refused) {
    char host[256] = "127.0.0.1", user[256] = "default", password[256] = "";
    int port = 6380;
    const char *url = getenv("REDIS_URL");
    if (url && sscanf(url, "redis://%255[^:@]:%255[^@]@%255[^:]:%d", user, password, host, &port) < 4
        && sscanf(url, "redis://:%255[^@]@%255[^:]:%d", password, host, &port) < 3)
        sscanf(url, "redis://%255[^:]:%d", host, &port), password[0] = 0;
    struct timeval half = {0, 500000};
    redisContext *made = redisConnectWithTimeout(host, port, half);
    if (made == NULL || made->err) return made;
    redisSetTimeout(made, half);
    if (password[0]) *refused = redisCommand(made, "AUTH %s %s", user, password);
    if (*refused && (*refused)->type != REDIS_REPLY_ERROR)
        freeReplyObject(*refused), *refused = NULL;
    return made;
}

/* The reply to a hit, or to the login if that is refused. NULL: the connection is lost. */
static redisReply *ask(const char *key) {
    redisReply *refused = NULL;
    if (client == NULL) client = opened(&refused);
    if (refused) redisFree(client), client = NULL;
    if (client == NULL || client->err) return refused;
    return redisCommand(client, "RL.HIT %s 5 60", key);
}

/* Whether an error reply is a mistake in the configuration, which must not pass for an outage. */
static int mistaken(const char *error) {
    size_t code = strcspn(error, " ");
    for (const char **each = UNABLE; *each; each++)
        if (strlen(*each) == code && strncmp(error, *each, code) == 0) return 0;
    return 1;
}

/* Whether one more is admitted; -1 for an error reply. */
static int hit(const char *key) {
    redisReply *reply = ask(key);
    if (reply && reply->type == REDIS_REPLY_ERROR && mistaken(reply->str)) {
        fprintf(stderr, "RL.HIT: %s\n", reply->str);
        freeReplyObject(reply);
        return -1;
    }
    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY) {
        /* Fail open: a limiter that is away must not take the service with it. For logins and the
           like, where an uncounted try is worse than none: return 0. */
        fprintf(stderr, "RL.HIT: %s\n", reply ? reply->str : client ? client->errstr : "no memory");
        printf("admitted, not counted\n");
        if (reply) freeReplyObject(reply);
        else if (client) redisFree(client), client = NULL;
        return 1;
    }
    int limited = (int)reply->element[0]->integer;
    if (limited) printf("refused, again in %lld s\n", reply->element[3]->integer);
    else printf("admitted, %lld left\n", reply->element[2]->integer);
    freeReplyObject(reply);
    return !limited;
}

int main(int argc, char **argv) {
    int admitted = 0;
    for (int turn = 0; turn < 6 && admitted >= 0; turn++)
        admitted = hit(argc > 1 ? argv[1] : "limit:example:c");
    if (client) redisFree(client);
    return admitted < 0;
}
