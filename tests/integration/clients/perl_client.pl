# A load client for Perl's Redis.pm: perl_client.pl PORT SECONDS CONNECTIONS
use strict;
use warnings;
use Redis;
use Time::HiRes qw(time);

my ($port, $seconds, $connections) = @ARGV;
my $end = time + $seconds;
my (%seen, @errors);

sub hit {
    my $number = int rand 20;
    return ('rl.hit', "exact:$number", 2 + 3 * $number, 40 + 25 * $number, 'MS');
}

sub note {
    my ($words, $reply) = @_;
    if ($words->[0] eq 'ping') {
        push @errors, 'PING failed' if !defined $reply || $reply ne 'PONG';
        return;
    }
    if (ref $reply ne 'ARRAY' || @$reply != 5 || ($reply->[0] == 0) != ($reply->[3] == -1)
        || $reply->[3] == 0) {
        push @errors, "@$words got a wrong reply";
        return;
    }
    $seen{join ' ', $words->[1], @$reply[0 .. 2]}++;
}

eval {
    my @redis = map { Redis->new(server => "127.0.0.1:$port", read_timeout => 20) } 1 .. $connections;
    my $turn = int rand 3;
    while (time < $end) {
        $turn++;
        for my $redis (@redis) {
            if ($turn % 3 == 0) {
                for (1 .. 4) {
                    my @words = hit();
                    note(\@words, scalar $redis->__std_cmd(@words));
                }
            }
            elsif ($turn % 3 == 1) {
                for my $index (0 .. 11) {
                    my @words = hit();
                    $redis->__std_cmd(@words, sub { note(\@words, $_[0]) });
                    $redis->__std_cmd('ping', sub { note(['ping'], $_[0]) }) if $index % 3 == 2;
                }
                $redis->wait_all_responses;
            }
            else {
                my @many = map { [hit()] } 1 .. 4;
                $redis->multi;
                $redis->__std_cmd(@$_) for @many;
                my @got = $redis->exec;
                note($many[$_], $got[$_]) for 0 .. 3;
            }
        }
    }
    1;
} or push @errors, "$@";
print "$_ $seen{$_}\n" for keys %seen;
print 'ERROR ', $_ =~ s/\n/ /gr, "\n" for @errors[0 .. ($#errors > 19 ? 19 : $#errors)];
